"""Groups of failures, for programs: the exit code or the signal that their workers share."""

from __future__ import annotations

from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.rpc.views.verdict import verdict_message
from support.core.coordinator import Bench
from support.core.fake_agents import worker_exit


def test_group_has_the_exit_code_or_the_signal() -> None:
    """One of the two; the text is for people."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=1))
    a, b = bench.run_round("a", "b", workers=2)
    a.fail(worker_exit(7), worker_exit(7, local_rank=1))
    b.fail(worker_exit(signal=9))
    bench.obey()
    groups = verdict_message(bench.the_verdict(), bench.now_ms).groups

    code, signal = groups
    assert ("exit code 7", 7, False) == (code.exit_text, code.exit_code, code.HasField("signal"))
    assert ("signal 9 (SIGKILL)", 9) == (signal.exit_text, signal.signal)
    assert not signal.HasField("exit_code")
