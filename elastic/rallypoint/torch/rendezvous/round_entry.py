"""The round of one node: its store, and the TCPStore that the node of rank 0 hosts.

A round is entered together: no node starts workers before all nodes of the round have come and the
TCPStore listens. So a node that dies on the way costs the others nothing but another round.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.machine.address import find_loopback
from rallypoint.base import worker_variables
from rallypoint.client.errors import Forgotten, RallypointError
from rallypoint.client.sync import Client
from rallypoint.torch.rendezvous.conf import hide_tokens
from rallypoint.torch.store.store import Store
from rallypoint.v1.barrier_service_pb2 import Participant

BARRIER = "torchrun.formed"
"""Name of the barrier that all nodes of a round pass before their workers start."""
PREFIX = "torchrun/"
"""What the names of torchrun's keys begin with: the workers' own have another prefix."""
NOT_SHARED_ENV = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""torch's variable: with 1, the worker of rank 0 hosts the TCPStore."""


class NotFormed(Exception):
    """The round could not be entered."""


class CannotServe(NotFormed):
    """The TCPStore of the workers cannot listen."""


def shares_store() -> bool:
    """Return whether the launcher hosts the TCPStore of the workers."""
    return os.environ.get(NOT_SHARED_ENV, "0") != "1"


class RoundEntry:
    """How this node enters one round, and what it holds until the next one."""

    def __init__(self, coordinator: str, job_id: str, node_name: str, order: RunOrder) -> None:
        """Take the order of a round.

        Args:
            coordinator: its host:port, or those of several with commas in between.
            job_id: the job.
            node_name: this node.
            order: of the round.
        """
        self.order = order
        self._job_id = job_id
        self._client = Client(coordinator, token=order.worker_token, epoch=order.header.epoch)
        self._store = Store(
            coordinator, job_id, order.worker_token, epoch=order.header.epoch, prefix=PREFIX
        )
        self._served: dist.TCPStore | None = None  # type: ignore[name-defined]
        self._variables = {
            worker_variables.COORDINATOR: coordinator,
            worker_variables.JOB_ID: job_id,
            worker_variables.NODE: node_name,
            worker_variables.RUN: str(order.header.run),
            worker_variables.ROUND: str(order.number),
            worker_variables.EPOCH: str(order.header.epoch),
            worker_variables.WORKER_TOKEN: order.worker_token,
        }

    def enter(self, timeout_s: float, *, serve_s: float) -> RendezvousInfo:
        """Host the TCPStore if this is the first node, and wait for the others.

        Args:
            timeout_s: how long to wait for the others.
            serve_s: how long the TCPStore may take until it listens.

        Raises:
            CannotServe: when the TCPStore cannot listen.
            NotFormed: when it fails otherwise, for example because the round is stopped.
        """
        header, rank = self.order.header, self.order.assignment.group_rank
        if shares_store() and rank == 0:
            self._serve(serve_s)
        if header.group_world_size > 1:
            self._wait_for_all(timeout_s)
        hide_tokens()
        os.environ.update(self._variables)  # torchrun's workers inherit them
        info = RendezvousStoreInfo(header.master_addr, header.master_port)
        return RendezvousInfo(self._find_store(), rank, header.group_world_size, info)

    def _find_store(self) -> dist.Store:  # type: ignore[name-defined]
        """Return the store of the round; a node alone needs no coordinator for it."""
        is_alone = self.order.header.group_world_size == 1
        return dist.HashStore() if is_alone else self._store  # type: ignore[attr-defined]

    def _serve(self, timeout_s: float) -> None:
        """Host the TCPStore.

        It connects to itself, and no signal interrupts that: so it uses the loopback address. A
        wrong address of this node shows in a connection that a signal does interrupt.
        """
        header = self.order.header
        try:
            self._served = dist.TCPStore(  # type: ignore[attr-defined]
                host_name=find_loopback(),
                port=header.master_port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
            )
            address = header.master_addr, header.master_port
            socket.create_connection(address, timeout=max(timeout_s, 0.1)).close()
        except (RuntimeError, OSError, ValueError) as error:
            text = " ".join(str(error).split())[:300]
            where = f"{header.master_addr}:{header.master_port}"
            text = f"the store of rank 0 cannot listen at {where} (--local-addr): {text}"
            raise CannotServe(text) from error

    def _wait_for_all(self, timeout_s: float) -> None:
        ends_s = time.monotonic() + timeout_s
        me = Participant(rank=self.order.assignment.first_rank)
        while True:
            left_s = max(0.0, ends_s - time.monotonic())
            try:
                self._client.arrive(self._job_id, BARRIER, me, timeout_s=left_s)
                return
            except Forgotten:
                continue  # the coordinator has started again: all nodes arrive again
            except RallypointError as error:
                raise NotFormed(str(error)) from error

    def close(self) -> None:
        """End all calls, and close the TCPStore."""
        self._store.close()
        self._client.close()
        self._served = None  # the last reference closes its port
