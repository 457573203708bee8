"""A TorchX component: each replica is an agent of Rallypoint, as `dist.ddp` makes one of torchrun.

    torchx run -s local_cwd torchx_component.py:elastic -j 2x4 --script train.py -- --epochs 3

The agents use `rallypoint` of the replica's PATH. With several nodes replica 0 starts a coordinator
for the job, unless `--coordinator HOST:PORT` names one that is there.
"""

# No `from __future__ import annotations`: TorchX reads the types of the arguments at run time.
import shlex

import torchx.specs as specs


def elastic(
    *script_args: str,
    script: str,
    j: str = "1x2",
    coordinator: str = "",
    port: int = 29400,
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
        coordinator: HOST:PORT of a coordinator; without it replica 0 starts one
        port: port of the coordinator that replica 0 starts
        max_restarts: restarts of the whole job
        image: image of the replicas, for schedulers that have images
        cpu: CPUs of each node
        gpu: GPUs of each node
        memMB: memory of each node in MB
    """
    nodes, _, workers = j.rpartition("x")
    nodes = nodes or "1"
    replicas = int(nodes.rpartition(":")[2])
    flags = ["rallypoint", "agent", f"--nnodes={nodes}", f"--nproc-per-node={workers}"]
    flags += [f"--max-restarts={max_restarts}", f"--job-id={specs.macros.app_id}"]
    command = shlex.join(flags)
    if coordinator or replicas > 1:
        # The shell of the replica knows the host of replica 0, by a variable that some schedulers
        # leave empty on replica 0 itself. Two dollars stand for one.
        host = f"$${{{specs.macros.rank0_env}:=localhost}}:{port}"
        endpoint = shlex.quote(coordinator) if coordinator else f'"{host}"'
        command += f" --rdzv-endpoint={endpoint} --node-name=node-{specs.macros.replica_id}"
    role = specs.Role(
        name="trainer",
        image=image,
        entrypoint="sh",
        args=["-c", f"exec {command} {shlex.join([script, *script_args])}"],
        num_replicas=replicas,
        resource=specs.Resource(cpu=cpu, gpu=gpu, memMB=memMB),
    )
    return specs.AppDef(name="rallypoint", roles=[role])
