// A worker in Go. It meets the workers of its round at a barrier, and prints what each of them has sent.
// Then each worker sets a key, and reads those of all.
//
// The node agent starts it, as README.md says.
package main

import (
	"bytes"
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
	"google.golang.org/protobuf/types/known/durationpb"

	pb "rallypoint.example/worker/gen/rallypoint/v1"
)

// A worker is what this process knows about itself.
type worker struct {
	rank      uint32
	worldSize int
	jobID     string
	epoch     uint64             // the latest epoch of the coordinator that it knows
	known     *pb.KeyValueHeader // of the latest answer about keys
	barriers  pb.BarrierServiceClient
	keys      pb.KeyValueServiceClient
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
	known, err := connect(strings.Split(os.Getenv("RALLYPOINT_COORDINATOR"), ","))
	if err != nil {
		return err
	}
	defer known.close()
	me, err := newWorker(known)
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

	if err := me.put(ctx, fmt.Sprintf("language/%d", me.rank), []byte("Go")); err != nil {
		return err
	}
	names := make([]string, me.worldSize)
	for rank := range names {
		names[rank] = fmt.Sprintf("language/%d", rank)
	}
	values, err := me.get(ctx, names)
	if err != nil {
		return err
	}
	fmt.Printf("languages: %s\n", bytes.Join(values, []byte(", ")))
	return nil
}

// The coordinators that this worker knows: one, or several that share all jobs.
type coordinators struct {
	connections []*grpc.ClientConn
	at          int // the one that is called; after UNAVAILABLE it is the next
}

func connect(addresses []string) (*coordinators, error) {
	known := &coordinators{}
	for _, address := range addresses {
		connection, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithNoProxy(), // the coordinator is on the workers' own network
			// A call that waits at a barrier is silent: pings notice a host that is gone.
			grpc.WithKeepaliveParams(keepalive.ClientParameters{
				Time: 10 * time.Second, Timeout: 5 * time.Second}))
		if err != nil {
			known.close()
			return nil, err
		}
		known.connections = append(known.connections, connection)
	}
	return known, nil
}

func (c *coordinators) close() {
	for _, connection := range c.connections {
		connection.Close()
	}
}

// Invoke makes one attempt of a call.
func (c *coordinators) Invoke(
	ctx context.Context, method string, request, answer any, options ...grpc.CallOption,
) error {
	err := c.connections[c.at].Invoke(ctx, method, request, answer, options...)
	if status.Code(err) == codes.Unavailable {
		c.at = (c.at + 1) % len(c.connections)
	}
	return err
}

// NewStream begins a call with a stream, which this worker does not need.
func (c *coordinators) NewStream(
	ctx context.Context, stream *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.connections[c.at].NewStream(ctx, stream, method, options...)
}

func newWorker(connection grpc.ClientConnInterface) (*worker, error) {
	rank, err := strconv.ParseUint(os.Getenv("RANK"), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("RANK: %w; start this program with a node agent", err)
	}
	worldSize, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return nil, fmt.Errorf("WORLD_SIZE: %w", err)
	}
	epoch, err := strconv.ParseUint(os.Getenv("RALLYPOINT_EPOCH"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("RALLYPOINT_EPOCH: %w", err)
	}
	return &worker{
		rank:      uint32(rank),
		worldSize: worldSize,
		jobID:     os.Getenv("RALLYPOINT_JOB_ID"),
		epoch:     epoch,
		known:     &pb.KeyValueHeader{Epoch: epoch}, // no answer yet
		barriers:  pb.NewBarrierServiceClient(connection),
		keys:      pb.NewKeyValueServiceClient(connection),
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
	if err != nil {
		return nil, err
	}
	w.epoch = answer.GetEpoch()
	return answer.GetPayloads(), nil
}

// put sets a key of the round.
func (w *worker) put(ctx context.Context, key string, value []byte) error {
	put := &pb.KeyWrite_Put_{Put: &pb.KeyWrite_Put{Value: value}}
	request := &pb.WriteKeysRequest{
		JobId:     w.jobID,
		Writes:    []*pb.KeyWrite{{Key: key, Write: put}},
		RequestId: newRequestID(),
	}
	answer, err := retry(ctx, func(isFirst bool) (*pb.WriteKeysResponse, error) {
		if !isFirst {
			request.Known = w.known
		}
		return w.keys.WriteKeys(ctx, request)
	})
	if err == nil {
		w.known = answer.GetHeader()
	}
	return err
}

// get waits until all of these keys exist. It returns their values, in the same order.
func (w *worker) get(ctx context.Context, keys []string) ([][]byte, error) {
	request := &pb.GetKeysRequest{
		JobId:   w.jobID,
		Keys:    keys,
		Timeout: durationpb.New(24 * time.Hour), // or until shortly before the deadline of ctx
	}
	answer, err := retry(ctx, func(bool) (*pb.GetKeysResponse, error) {
		return w.keys.GetKeys(ctx, request)
	})
	if err != nil {
		return nil, err
	}
	w.known = answer.GetHeader()
	var values [][]byte
	for _, kv := range answer.GetKvs() {
		values = append(values, kv.GetValue())
	}
	return values, nil
}

// newRequestID names one arrival or one change. It must be the same for every attempt, so that the
// coordinator counts it once.
func newRequestID() string {
	return strconv.FormatUint(rand.Uint64(), 16)
}

// retry calls until the answer is not UNAVAILABLE: the coordinator may be away for a moment. The next
// attempt is at the next coordinator, if there are several. It pauses between the attempts, and gives
// up at the deadline of ctx.
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
		switch detail := detail.(type) {
		case *pb.BarrierBroken:
			log.Printf("missing: %s; lost: %s",
				describe(detail.GetMissing()), describe(detail.GetLost()))
		case *pb.KeysMissing:
			log.Printf("missing keys: %s", strings.Join(detail.GetKeys(), ", "))
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
