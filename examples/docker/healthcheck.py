"""Exits with 0 if a coordinator serves: for HEALTHCHECK of Docker and probes of Kubernetes.

    healthcheck.py [--tls-ca FILE] [--tls-server-name NAME] [--timeout SECONDS] [HOST:PORT]

It asks the standard health service, `grpc.health.v1.Health`, which needs no token. Kubernetes can
ask it without this script, but not over TLS. The variables RALLYPOINT_TLS, RALLYPOINT_TLS_CA and
so on count here too.
"""

from __future__ import annotations

import argparse
import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from msgspec.structs import replace

from rallypoint.base.names import Unresolved
from rallypoint.wire.access import AccessFailed, from_environment
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import Credentials
from rallypoint.wire.resolved import resolve

SERVING = health_pb2.HealthCheckResponse.SERVING


def find_problem(arguments: argparse.Namespace) -> str:
    """Return why the coordinator does not serve; empty: it does."""
    try:
        access = from_environment(os.environ)
        access = replace(
            access,
            ca_file=arguments.tls_ca or access.ca_file,
            cert_file=arguments.tls_cert or access.cert_file,
            key_file=arguments.tls_key or access.key_file,
            server_name=arguments.tls_server_name or access.server_name,
        )
        at = resolve(arguments.address, arguments.timeout)
        with Credentials(access).open_channel(at, client_options()) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=arguments.timeout)
    except (AccessFailed, Unresolved) as error:
        return str(error)
    except grpc.RpcError as error:
        return f"{arguments.address}: {error.code().name}: {error.details()}"
    if answer.status != SERVING:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        return f"{arguments.address}: {status}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a coordinator whether it serves.")
    parser.add_argument("address", nargs="?", default="localhost:50051", metavar="HOST:PORT")
    parser.add_argument("--tls-ca", default="", metavar="FILE")
    parser.add_argument("--tls-cert", default="", metavar="FILE")
    parser.add_argument("--tls-key", default="", metavar="FILE")
    parser.add_argument("--tls-server-name", default="", metavar="NAME")
    parser.add_argument("--timeout", type=float, default=3, metavar="SECONDS")
    problem = find_problem(parser.parse_args())
    if problem:
        print(f"healthcheck: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
