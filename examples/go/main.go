// A worker in Go. It meets the workers of its round at a barrier, and prints what each of them has sent.
//
// The node agent starts it, as README.md says.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "rallypoint.example/worker/gen/rallypoint/v1"
)

// A worker is what this process knows about itself.
type worker struct {
	rank     uint32
	jobID    string
	epoch    uint64 // the latest epoch of the coordinator that it knows
	barriers pb.BarrierServiceClient
}

func main() {
	log.SetFlags(0)
	timeout := flag.Duration("timeout", time.Minute, "how long to wait for the other workers")
	flag.Parse()
	if err := run(*timeout); err != nil {
		report(err)
		os.Exit(1) // the job restarts its workers, or fails
	}
}

func run(timeout time.Duration) error {
	connection, err := grpc.NewClient(os.Getenv("RALLYPOINT_COORDINATOR"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), // the coordinator is on the workers' own network
		// A call that waits at a barrier is silent: pings notice a coordinator whose host is gone.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second}))
	if err != nil {
		return err
	}
	defer connection.Close()
	me, err := newWorker(connection)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// The token proves that this process is a worker of the round.
	ctx = metadata.AppendToOutgoingContext(ctx,
		"rallypoint-worker-token", os.Getenv("RALLYPOINT_WORKER_TOKEN"))

	payloads, err := me.meet(ctx, "hello", []byte(fmt.Sprintf("Go, rank %d", me.rank)))
	if err != nil {
		return err
	}
	for rank, payload := range payloads {
		fmt.Printf("rank %d sent: %s\n", rank, payload)
	}
	return nil
}

func newWorker(connection *grpc.ClientConn) (*worker, error) {
	rank, err := strconv.ParseUint(os.Getenv("RANK"), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("RANK: %w; start this program with a node agent", err)
	}
	epoch, err := strconv.ParseUint(os.Getenv("RALLYPOINT_EPOCH"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("RALLYPOINT_EPOCH: %w", err)
	}
	return &worker{
		rank:     uint32(rank),
		jobID:    os.Getenv("RALLYPOINT_JOB_ID"),
		epoch:    epoch,
		barriers: pb.NewBarrierServiceClient(connection),
	}, nil
}

// meet waits until every rank of the round has called it with this name. It returns what each of them
// has sent, by rank.
func (w *worker) meet(ctx context.Context, name string, payload []byte) ([][]byte, error) {
	request := &pb.ArriveRequest{
		JobId:       w.jobID,
		Name:        name,
		Participant: &pb.Participant{Who: &pb.Participant_Rank{Rank: w.rank}},
		Payload:     payload,
		RequestId:   newRequestID(),
	}
	answer, err := retry(ctx, func(isFirst bool) (*pb.ArriveResponse, error) {
		if !isFirst {
			request.FirstEpoch = w.epoch
		}
		return w.barriers.Arrive(ctx, request)
	})
	w.epoch = max(w.epoch, answer.GetEpoch())
	return answer.GetPayloads(), err
}

// newRequestID names one arrival or one change. It must be the same for every attempt, so that the
// coordinator counts it once.
func newRequestID() string {
	return strconv.FormatUint(rand.Uint64(), 16)
}

// retry calls until the answer is not UNAVAILABLE: the coordinator may be away for a moment. It pauses
// between the attempts, and gives up at the deadline of ctx.
func retry[T any](ctx context.Context, call func(isFirst bool) (T, error)) (T, error) {
	longest := 100 * time.Millisecond
	for isFirst := true; ; isFirst = false {
		answer, err := call(isFirst)
		if status.Code(err) != codes.Unavailable {
			return answer, err
		}
		// Drawn at random, so that the workers of a large job do not come back all at once.
		select {
		case <-time.After(rand.N(longest)):
			longest = min(2*longest, 2*time.Second)
		case <-ctx.Done():
			return answer, err
		}
	}
}

// report prints the details of an error. Its status comes last: the coordinator shows the last line as
// the cause.
func report(err error) {
	failed := status.Convert(err)
	for _, detail := range failed.Details() {
		if broken, ok := detail.(*pb.BarrierBroken); ok {
			log.Printf("missing: %s; lost: %s",
				describe(broken.GetMissing()), describe(broken.GetLost()))
		}
	}
	log.Printf("%s: %s", failed.Code(), failed.Message())
}

func describe(participants *pb.Participants) string {
	var names []string
	for _, rank := range participants.GetRanks() {
		names = append(names, fmt.Sprintf("rank %d", rank))
	}
	names = append(names, participants.GetNodes()...)
	names = append(names, participants.GetNames()...)
	if len(names) == 0 {
		return "no one"
	}
	return strings.Join(names, ", ")
}
