"""A worker that does what examples/nodejs and examples/go do, with plain gRPC."""

import os

import grpc

from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc

RANK = int(os.environ["RANK"])
METADATA = (("rallypoint-worker-token", os.environ["RALLYPOINT_WORKER_TOKEN"]),)

with grpc.insecure_channel(os.environ["RALLYPOINT_COORDINATOR"]) as channel:
    arrive = barrier_pb2.ArriveRequest(
        job_id=os.environ["RALLYPOINT_JOB_ID"],
        name="hello",
        participant=barrier_pb2.Participant(rank=RANK),
        payload=f"Python, rank {RANK}".encode(),
    )
    barriers = barrier_grpc.BarrierServiceStub(channel)
    answer = barriers.Arrive(arrive, timeout=60, metadata=METADATA)
for rank, payload in enumerate(answer.payloads):
    print(f"rank {rank} sent: {payload.decode()}", flush=True)
