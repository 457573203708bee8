"""How an interpreter gets to run our `sitecustomize`, which arms a worker before its program."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.helper.frames import ARMED_ENV
from rallypoint.agent.in_worker import PRELOAD

PYTHONPATH_ENV = "RALLYPOINT_PRELOAD_PYTHONPATH"


def with_hook(environment: Mapping[str, str], name: str, value: str) -> dict[str, str]:
    """Return an environment in which an interpreter runs our hook, with one variable for it."""
    before = environment.get("PYTHONPATH")
    if before is not None and before.partition(os.pathsep)[0] == PRELOAD:
        return {**environment, name: value}  # for another variable
    kept = {} if before is None else {PYTHONPATH_ENV: before}
    path = os.pathsep.join(filter(None, (PRELOAD, before)))
    return {**environment, **kept, "PYTHONPATH": path, name: value}


def armed(request: SpawnRequest) -> SpawnRequest:
    """Return the request of a worker by which its own interpreter arms it, if it shall be armed."""
    prefix = request.env.get(ARMED_ENV)
    if not prefix or request.is_forked or request.via is not None:
        return request
    return request._replace(env=with_hook(request.env, ARMED_ENV, prefix))
