"""The references in the documentation are what the parsers and the contract say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from support.reference.api import render_api
from support.reference.commands import render_commands
from support.reference.flags import render_reference
from support.reference.limits import render_limits

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "docs" / "reference"


@pytest.fixture(scope="module")
def api() -> dict[str, str]:
    """The pages about the API; `make check` looks whether the descriptors are fresh."""
    return render_api()


def test_reference_is_fresh() -> None:
    """If this fails: make flags."""
    assert (FOLDER / "flags.md").read_text(encoding="utf-8") == render_reference() + "\n"


def test_commands_are_fresh() -> None:
    """If this fails: make flags."""
    assert (FOLDER / "commands.md").read_text(encoding="utf-8") == render_commands() + "\n"


def test_limits_are_fresh() -> None:
    """If this fails: make limits."""
    assert (FOLDER / "limits.md").read_text(encoding="utf-8") == render_limits() + "\n"


def test_api_is_fresh(api: dict[str, str]) -> None:
    """If this fails: make api."""
    written = {path.name: path.read_text("utf-8") for path in (FOLDER / "api").glob("*.md")}

    assert written == api


def test_api_is_in_the_navigation(api: dict[str, str]) -> None:
    """Of the documentation site, each page once."""
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")

    assert [page for page in api if navigation.count(f": reference/api/{page}\n") != 1] == []


def test_headings_of_a_page_differ(api: dict[str, str]) -> None:
    """In lower case: links to types lead there."""
    for page, text in api.items():
        headings = [line.strip("# ").lower() for line in text.splitlines() if line[:1] == "#"]
        assert [name for name, count in Counter(headings).items() if count > 1] == [], page


def test_a_service_is_shown_with_all_that_it_has(api: dict[str, str]) -> None:
    """Methods, fields with types, links and limits, oneofs, values, what is reserved."""
    jobs, agents, types = api["job_service.md"], api["agent_service.md"], api["job.md"]

    assert (
        "`rallypoint.v1.JobService.WatchJobs`: takes [`WatchJobsRequest`](#watchjobsrequest),"
        " returns a stream of [`WatchJobsResponse`](#watchjobsresponse)." in jobs
    )
    assert "NOT_FOUND with [`UnknownJob`](error_details.md#unknownjob)" in jobs
    assert (
        "| `job_id` | 1 | string | Name of the job. Empty is refused. |"
        " wish: 1 to 255 bytes; printable |" in jobs
    )
    assert "| `phases` | 3 | repeated [`JobPhase`](job.md#jobphase) |" in jobs
    assert "One of these, as `state`. The state." in agents
    assert "| `node_rank` | 11 | optional uint32 |" in agents
    assert "| `labels` | 10 | map of string to string |" in agents
    assert "| `JOB_PHASE_CLOSED` | 4 | The run has its outcome. |" in types
    assert "Reserved: 2, `reason`." in types
