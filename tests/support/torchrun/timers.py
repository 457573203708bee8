"""Lines that a client of torch's timers writes."""

import json
import signal


def line(pid: int, expires_s: float, scope: str = "step", signum: int = signal.SIGKILL) -> bytes:
    request = {
        "version": 1,
        "pid": pid,
        "scope_id": scope,
        "expiration_time": expires_s,
        "signal": signum,
    }
    return json.dumps(request).encode() + b"\n"
