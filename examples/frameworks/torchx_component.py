"""A TorchX component: each replica is an agent of Rallypoint, as `dist.ddp` makes one of torchrun.

    torchx run -s local_cwd torchx_component.py:elastic -j 2x4 --coordinator HOST:PORT \
        --script train.py -- --epochs 3

The agents use `rallypoint` of the replica's PATH. One node needs no coordinator.
"""

# No `from __future__ import annotations`: TorchX reads the types of the arguments at run time.
import torchx.specs as specs


def elastic(
    *script_args: str,
    script: str,
    j: str = "1x2",
    coordinator: str = "",
    max_restarts: int = 0,
    image: str = "",
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
) -> specs.AppDef:
    """Run a script with Rallypoint on every node.

    Args:
        script_args: arguments of the script
        script: path of the script
        j: nodes x workers of each node, such as 2x8 or 2:4x8
        coordinator: HOST:PORT of a coordinator; needed for more than one node
        max_restarts: restarts of the whole job
        image: image of the replicas, for schedulers that have images
        cpu: CPUs of each node
        gpu: GPUs of each node
        memMB: memory of each node in MB
    """
    nodes, _, workers = j.rpartition("x")
    nodes = nodes or "1"
    flags = ["agent", f"--nnodes={nodes}", f"--nproc-per-node={workers}"]
    flags += [f"--max-restarts={max_restarts}", f"--job-id={specs.macros.app_id}"]
    if coordinator:
        flags += [f"--coordinator={coordinator}", f"--node-name=node-{specs.macros.replica_id}"]
    role = specs.Role(
        name="trainer",
        image=image,
        entrypoint="rallypoint",
        args=[*flags, script, *script_args],
        num_replicas=int(nodes.rpartition(":")[2]),
        resource=specs.Resource(cpu=cpu, gpu=gpu, memMB=memMB),
    )
    return specs.AppDef(name="rallypoint", roles=[role])
