"""Progress of workers: the agent reports that they stand still, and that one moves again.

While all is well it reports nothing. Since when they stand still belongs to the held round: each
Hello repeats it, and a coordinator that has started again learns it. A stop forgets it.

Without a session only the latest word is kept, because workers may stop and move again for hours.
"""

from __future__ import annotations

from rallypoint.agent.core.inputs import ProgressSeen
from rallypoint.agent.core.reports import ProgressReport
from rallypoint.agent.core.work import Work


def see_progress(work: Work, seen: ProgressSeen) -> None:
    """Report whether the workers of the held round make progress, if that has changed."""
    held = work.state.held
    if held is None or held.number != seen.round or not held.is_running:
        return
    if (held.still_since_ms is None) == (seen.still_since_ms is None):
        return
    work.hold(held.still(seen.still_since_ms))
    report, reports = ProgressReport(held.number, seen.still_since_ms), work.state.reports
    is_away = work.state.away_since_ms is not None
    if is_away and reports and isinstance(reports[-1], ProgressReport):
        work.change(reports=(*reports[:-1], report))
    else:
        work.report(report)
