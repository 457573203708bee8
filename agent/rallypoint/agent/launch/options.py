"""The options of a job: one table for every way to launch.

Flags of `node-agent`, keys of `rdzv_configs` and of --rdzv-conf, and the specification of the job
all follow from `JobOptions`. Keys of torch keep their meaning. Without gRPC, which is loaded later.
"""

# The annotations are read at the import, so they are no texts: no `from __future__ import`.

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from msgspec import Struct

from rallypoint.agent.evidence.mode import Arming
from rallypoint.agent.launch.notes import Note
from rallypoint.agent.preload.names import AUTO, parse_calls, parse_modules
from rallypoint.base.exit_codes import EXIT_NO_REQUEUE
from rallypoint.base.limits import (
    BEATS_PER_LEASE,
    COUNT_MAX,
    FENCE_BEYOND_SHUTDOWN_MS,
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    QUARANTINE_AFTER_MAX,
)
from rallypoint.base.values import (
    BadValue,
    choice,
    count,
    exit_codes,
    natural_int,
    positive_int,
    positive_seconds_ms,
    seconds_ms,
    seconds_within_ms,
    text,
    truth,
)

if TYPE_CHECKING:
    from rallypoint.agent.preload.command import Preload
    from rallypoint.v1 import job_pb2

SECONDS = "SECONDS"
"""The unit of times for people; the options hold milliseconds."""


class HangAction(Enum):
    """What follows when a round is suspected to hang."""

    REPORT = "report"
    RESTART = "restart"


class Option(Struct, frozen=True, kw_only=True):
    """One option of a job."""

    help: str = ""
    """Its effect, for --help."""
    parse: Callable[[Any], Any]
    """Reads a text or a value, and raises BadValue for a bad one."""
    unit: str = ""
    """Placeholder of the value in --help; empty: a switch."""
    default_text: str = ""
    """The default in words; empty: the value itself says it."""
    torchrun: str = ""
    """torchrun's default, where it differs."""
    flag: str = ""
    """Its flag, where that is not named like the option."""
    torch: tuple[str, ...] = ()
    """torch's keys for it, the vaguer before the clearer."""
    plugin_key: str = ""
    """Its key in the --rdzv-conf of torchrun's back end; empty: that one has none."""
    plugin_default: int | None = None
    """The default of that back end; None: the same."""
    is_key: bool = True
    """Whether `rdzv_configs` takes it; False: a field of `LaunchConfig` or of the agent has it."""
    is_of_node: bool = False
    """Whether it may differ between nodes: it is not in the specification of the job."""


def _seconds(help: str, parse: Callable[[Any], Any] = seconds_ms, **more: Any) -> Option:
    return Option(help=help, parse=parse, unit=SECONDS, **more)


def _count(help: str, parse: Callable[[Any], Any] = natural_int, **more: Any) -> Option:
    return Option(help=help, parse=parse, unit="N", **more)


class JobOptions(Struct, frozen=True, kw_only=True):
    """How a job restarts, grows and notices failures. Times are in milliseconds."""

    join_timeout: Annotated[
        int,
        _seconds(
            "how long to wait for MIN nodes",
            positive_seconds_ms,
            torch=("timeout", "join_timeout"),
            plugin_key="join_timeout",
        ),
    ] = 600_000
    last_call: Annotated[
        int,
        _seconds(
            "how long the first round waits for nodes beyond MIN; each arrival restarts the timer, "
            "up to six times",
            torchrun="30",
            torch=("last_call_timeout",),
            plugin_key="last_call_timeout",
            plugin_default=30_000,
        ),
    ] = 5_000
    grow: Annotated[
        bool,
        Option(
            help="never stop a running round to add nodes",
            parse=truth,
            flag="--no-grow",
            plugin_key="grow",
        ),
    ] = True
    settle_time: Annotated[
        int,
        _seconds(
            "how long a running round waits for more new nodes before it grows; each arrival "
            "restarts the timer",
            plugin_key="settle_time",
        ),
    ] = 5_000
    grow_after: Annotated[
        int,
        _seconds("minimum age of a round before it is stopped to grow", plugin_key="grow_after"),
    ] = 10_000
    max_restarts: Annotated[
        int,
        _count(
            "restarts after failures, counted for the whole job (torchrun: for each agent)",
            is_key=False,
        ),
    ] = 0
    restart_backoff: Annotated[
        int,
        _seconds(
            "pause before the third restart in a row; doubles with each further one; 0: none",
            plugin_default=0,
        ),
    ] = 1_000
    crash_loop: Annotated[
        int,
        _count("identical early failures in a row that end the job; 0: no limit", plugin_default=0),
    ] = 5
    max_reformations: Annotated[
        int,
        _count(
            "re-formed rounds in a row without progress, and without a restart, that end the job",
            plugin_default=COUNT_MAX,
        ),
    ] = 10
    progress_after: Annotated[
        int,
        _seconds("how long a round must run to count as progress, which resets the counts above"),
    ] = 300_000
    no_retry_exit_codes: Annotated[
        tuple[int, ...],
        Option(
            help="worker exit codes that end the job without a restart",
            parse=exit_codes,
            unit="N,…",
        ),
    ] = ()
    no_requeue_exit_codes: Annotated[
        tuple[int, ...],
        Option(
            help=f"the same, and the agent exits with {EXIT_NO_REQUEUE}, so that a scheduler does "
            "not requeue the job",
            parse=exit_codes,
            unit="N,…",
            is_key=False,
        ),
    ] = ()
    quarantine_after: Annotated[
        int,
        _count(
            "failures of one node within the window after which it is quarantined; 0: never",
            count(QUARANTINE_AFTER_MAX),
            plugin_default=0,
        ),
    ] = 3
    quarantine_window: Annotated[int, _seconds("the window in which these failures count")] = (
        600_000
    )
    quarantine_cooldown: Annotated[
        int, _seconds("how long a node is quarantined; doubles with each further quarantine")
    ] = 300_000
    heartbeat_interval: Annotated[
        int | None,
        _seconds(
            "time between two heartbeats of an agent",
            seconds_within_ms(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX),
            default_text="1, set by the coordinator",
            torchrun="5",
            plugin_default=5_000,
        ),
    ] = None
    lease: Annotated[
        int | None,
        _seconds(
            "how long a silent node counts as alive",
            seconds_within_ms(LEASE_MS_MIN, LEASE_MS_MAX),
            default_text="5, set by the coordinator",
            torchrun="15",
            plugin_default=15_000,
        ),
    ] = None
    fence_after: Annotated[
        int,
        _seconds(
            "time for a lost agent to kill its workers, before a round begins without it; "
            "at least --shutdown-timeout + 3, with several coordinators + 8; 0: off"
        ),
    ] = 0
    hang_after: Annotated[
        int,
        _seconds(
            "how long no worker of a round may make progress until it is suspected to hang; 0: off"
        ),
    ] = 300_000
    hang_first_after: Annotated[
        int, _seconds("the same before the first progress of a round; 0: off")
    ] = 1_800_000
    hang_action: Annotated[
        HangAction,
        Option(
            help="what follows: report (evidence is taken and shown) or restart (the round is "
            "stopped, too, and a restart is charged)",
            parse=choice(HangAction),
            unit="ACTION",
            default_text="report",
        ),
    ] = HangAction.REPORT
    shutdown_timeout: Annotated[
        int,
        _seconds(
            "time from the stop signal to SIGKILL, for every stop",
            plugin_key="stop_timeout",
            plugin_default=45_000,
            is_key=False,
        ),
    ] = 30_000
    coordinator_timeout: Annotated[
        int | None,
        _seconds(
            "how long an agent without running workers waits for a coordinator; may differ "
            "between nodes",
            positive_seconds_ms,
            default_text="--join-timeout",
            plugin_key="read_timeout",
            plugin_default=60_000,
            is_of_node=True,
        ),
    ] = None
    outcome_timeout: Annotated[
        int,
        _seconds(
            "how long an agent whose workers all exited with 0 waits for a coordinator to confirm "
            "the outcome; may differ between nodes",
            plugin_key="close_timeout",
            plugin_default=30_000,
            is_key=False,
            is_of_node=True,
        ),
    ] = 300_000
    node_name: Annotated[
        str | None,
        Option(
            help="name of this node",
            parse=text,
            unit="NAME",
            default_text="the host name",
            plugin_key="node_name",
            is_of_node=True,
        ),
    ] = None
    rank: Annotated[
        int | None,
        _count(
            "position of this node among the nodes",
            flag="--node-rank",
            default_text="any",
            torchrun="0",
            is_of_node=True,
        ),
    ] = None
    is_host: Annotated[bool | None, Option(parse=truth, torch=("is_host",), is_of_node=True)] = None
    """Whether this node hosts the coordinator of its job; None: the endpoint or the rank says."""
    preload: Annotated[
        tuple[str, ...],
        Option(
            help="modules that one process of this node imports, from which all workers are "
            "forked: torch,numpy; auto: what workers import",
            parse=parse_modules,
            unit="NAMES",
            default_text="off",
            is_of_node=True,
        ),
    ] = ()
    preload_call: Annotated[
        tuple[str, ...],
        Option(
            help="functions that this process then calls, as pkg.mod:function; none may start "
            "a thread or open a device or a socket",
            parse=parse_calls,
            unit="NAMES",
            default_text="none",
            is_of_node=True,
        ),
    ] = ()
    evidence: Annotated[
        Arming,
        Option(
            help="how workers show what they do: off, signals (stacks at a fatal signal) or full "
            "(stacks and collectives)",
            parse=choice(Arming),
            unit="MODE",
            default_text="full",
            is_of_node=True,
        ),
    ] = Arming.FULL

    @property
    def coordinator_timeout_ms(self) -> int:
        """How long this node does without a coordinator while it runs no workers."""
        timeout_ms = self.coordinator_timeout
        return self.join_timeout if timeout_ms is None else timeout_ms

    def preloaded(self) -> "Preload | None":
        """Return what is preloaded on this node; None: nothing."""
        if not (self.preload or self.preload_call):
            return None
        from rallypoint.agent.preload.command import Preload

        is_auto = self.preload == (AUTO,)
        names = () if is_auto else self.preload
        return Preload(modules=names, calls=self.preload_call, is_auto=is_auto)

    def find_conflict(self) -> str:
        """Return which options the coordinator would refuse together; empty: none."""
        both = set(self.no_retry_exit_codes) & set(self.no_requeue_exit_codes)
        if both:
            flags = "--no-retry-exit-codes and --no-requeue-exit-codes"
            return f"exit code {min(both)} is in both {flags}"
        beats_ms = min(
            BEATS_PER_LEASE * (self.heartbeat_interval or 1_000),
            self.lease or BEATS_PER_LEASE * HEARTBEAT_MS_MAX,
        )
        beyond_ms = max(FENCE_BEYOND_SHUTDOWN_MS, beats_ms)
        least_ms = self.shutdown_timeout + beyond_ms
        if 0 < self.fence_after < least_ms:
            how = f"--shutdown-timeout + {beyond_ms / 1000:g}"
            return f"--fence-after must be at least {least_ms / 1000:g}: {how}"
        return ""

    def spec(self, *, min_nodes: int, max_nodes: int) -> "job_pb2.JobSpec":
        """Return the specification of the job."""
        from rallypoint.v1 import job_pb2

        fields: dict[str, Any] = {"min_nodes": min_nodes, "max_nodes": max_nodes}
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is not None and not option.is_of_node:
                fields[name] = _to_field(value, option)
        return job_pb2.JobSpec(**fields)


def _to_field(value: Any, option: Option) -> Any:
    """Return a value as a field of the specification takes it."""
    from rallypoint.wire.durations import to_duration

    if isinstance(value, HangAction):
        return f"HANG_ACTION_{value.name}"
    return to_duration(value) if option.unit == SECONDS else value


OPTIONS: dict[str, Option] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(JobOptions, include_extras=True).items()
}
"""Every option by its name."""

INTERVAL, ATTEMPTS = "keep_alive_interval", "keep_alive_max_attempt"
INTERVAL_MS, ATTEMPTS_COUNT = 5_000, 3
"""torch's defaults, for when only one of the two is given."""
UNUSED = frozenset(
    {
        "ca_cert",
        "cacert",
        "cert",
        "close_timeout",
        "etcd_prefix",
        "heartbeat",
        "heartbeat_timeout",
        "is_host",
        "key",
        "protocol",
        "rank",
        "read_timeout",
        "ssl_cert",
        "ssl_cert_key",
        "store_type",
        "use_libuv",
    }
)
"""torch's settings of stores, which do not exist here. A way to launch may know some of them."""

COMMAND_KEYS = {key: name for name, option in OPTIONS.items() for key in option.torch}
"""The keys of the command's --rdzv-conf, and the options that they set: torch's, because ours have
flags. Here and below the clearer of two keys is the later one, and wins."""
PYTHON_KEYS = COMMAND_KEYS | {name: name for name, option in OPTIONS.items() if option.is_key}
"""The keys of `rdzv_configs`."""
PLUGIN_KEYS = {option.plugin_key: name for name, option in OPTIONS.items() if option.plugin_key}
"""The keys of --rdzv-conf where torchrun runs the workers."""
_PLUGIN_DEFAULTS: dict[str, Any] = {
    name: option.plugin_default
    for name, option in OPTIONS.items()
    if option.plugin_default is not None
}
PLUGIN_OPTIONS = JobOptions(**_PLUGIN_DEFAULTS)
"""The defaults where torchrun runs the workers. It counts restarts itself, so the coordinator has
none: the run ends when torchrun gives up, and never because rounds form too often."""


def read_config(config: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that a configuration of a rendezvous sets.

    Raises:
        BadValue: a value does not fit its key.
    """
    given = {key: value for key, value in config.items() if value is not None}
    values = {
        name: _read(given, key, OPTIONS[name].parse) for key, name in keys.items() if key in given
    }
    if INTERVAL in given or ATTEMPTS in given:
        interval_ms = _read(given, INTERVAL, seconds_ms) if INTERVAL in given else INTERVAL_MS
        attempts = _read(given, ATTEMPTS, positive_int) if ATTEMPTS in given else ATTEMPTS_COUNT
        # torch takes any value, so use the nearest that a job may have.
        lease_ms = min(max(interval_ms * attempts, LEASE_MS_MIN), LEASE_MS_MAX)
        values.setdefault("lease", lease_ms)
        if INTERVAL in given:
            beat_ms = min(max(interval_ms, HEARTBEAT_MS_MIN), HEARTBEAT_MS_MAX)
            values.setdefault("heartbeat_interval", beat_ms)
    return values


def _read(given: Mapping[str, Any], key: str, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(given[key])
    except BadValue as error:
        raise BadValue(f"{key}: {error}") from None


def list_key_notes(config: Mapping[str, Any], keys: Mapping[str, str]) -> list[Note]:
    """Return notes on keys without an effect. torch ignores unknown ones: they end no launch."""
    used = [*keys, INTERVAL, ATTEMPTS]
    unused = sorted((UNUSED & config.keys()).difference(used))
    unknown = sorted((config.keys() - UNUSED).difference(used))
    notes = []
    if unused:
        notes.append(Note("rdzv_conf_keys_ignored", {"keys": unused, "why": "no store is used"}))
    if unknown:
        from difflib import get_close_matches  # slow to import, and only a mistake needs it

        near = next((near for key in unknown for near in get_close_matches(key, used, n=1)), "")
        fields = {"keys": unknown, **({"did_you_mean": near} if near else {})}
        notes.append(Note("rdzv_conf_keys_not_recognized", fields))
    return notes
