"""A worker that does what examples/nodejs and examples/go do, with plain gRPC."""

import os

import grpc
from google.protobuf.duration_pb2 import Duration

from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc

RANK = int(os.environ["RANK"])
METADATA = (("rallypoint-worker-token", os.environ["RALLYPOINT_WORKER_TOKEN"]),)

JOB_ID = os.environ["RALLYPOINT_JOB_ID"]

with grpc.insecure_channel(os.environ["RALLYPOINT_COORDINATOR"]) as channel:
    barriers = barrier_grpc.BarrierServiceStub(channel)
    arrive = barrier_pb2.ArriveRequest(
        job_id=JOB_ID,
        name="hello",
        participant=barrier_pb2.Participant(rank=RANK),
        payload=f"Python, rank {RANK}".encode(),
    )
    met = barriers.Arrive(arrive, timeout=60, metadata=METADATA)
    for rank, payload in enumerate(met.payloads):
        print(f"rank {rank} sent: {payload.decode()}")

    store = keys_grpc.KeyValueServiceStub(channel)
    put = keys_pb2.KeyWrite(key=f"language/{RANK}", put=keys_pb2.KeyWrite.Put(value=b"Python"))
    write = keys_pb2.WriteKeysRequest(job_id=JOB_ID, writes=[put])
    store.WriteKeys(write, timeout=60, metadata=METADATA)
    names = [f"language/{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
    get = keys_pb2.GetKeysRequest(job_id=JOB_ID, keys=names, timeout=Duration(seconds=60))
    found = store.GetKeys(get, timeout=60, metadata=METADATA)
    print("languages:", ", ".join(kv.value.decode() for kv in found.kvs))
