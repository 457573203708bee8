"""What the probes find, as values. Times are in seconds."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.base.needs import ADVICE_TASKS, TASKS, TASKS_PER_WORKER, Need
from rallypoint.wire.certificates import Certificate


class Endpoint(Struct, frozen=True):
    """Where a coordinator should be."""

    host: str
    """Name or address, without brackets."""
    port: int

    def __str__(self) -> str:
        """Return `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_endpoint(text: str) -> Endpoint:
    """Return what `host:port` names."""
    host, _, port = text.rpartition(":")
    return Endpoint(host.strip("[]"), int(port))


class Lookup(Struct, frozen=True):
    """What the name of a host means."""

    host: str
    addresses: tuple[str, ...] = ()
    """Without repetition, in the resolver's order. Empty: none was found."""
    error: str = ""
    """Of the resolver. Empty when it has found an address or did not answer in time."""
    took_s: float = 0.0


class Reach(Enum):
    """How an attempt to connect ended."""

    OPEN = "open"
    REFUSED = "refused"
    """The host answers, and nothing listens on the port."""
    SILENT = "silent"
    """There was no answer in time."""
    UNREACHABLE = "unreachable"
    """There is no way to the host; `error` says why."""


class Attempt(Struct, frozen=True):
    """An attempt to connect to one address."""

    address: str
    reach: Reach
    took_s: float = 0.0
    own_address: str = ""
    """Of this host on the connection. Empty without one."""
    error: str = ""
    """Of the operating system."""


class Speech(Enum):
    """What a program that listens answers to the first bytes of HTTP/2."""

    HTTP2 = "http2"
    TLS = "tls"
    HTTP1 = "http1"
    OTHER = "other"
    """Something else, or it closed the connection."""
    NOTHING = "nothing"


class Heard(Struct, frozen=True):
    """The answer of a program that listens."""

    speech: Speech
    words: str = ""
    """Its first line, as far as it is printable. Empty for HTTP/2 and TLS."""


class Listener(Struct, frozen=True):
    """A process of this host that listens on a port."""

    address: str
    """On which it listens; `*`: on all of them."""
    pid: int = 0
    """0: of another user, so unknown."""
    name: str = ""
    """Of its program. Empty: unknown."""


class Trust(Enum):
    """How the verification of a server's certificate ended."""

    TRUSTED = "trusted"
    UNKNOWN_AUTHORITY = "unknown authority"
    WRONG_NAME = "wrong name"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    CLIENT_REFUSED = "client refused"
    """The server is trusted, and does not accept the certificate of this side."""
    FAILED = "failed"
    """The handshake failed otherwise; `error` says why."""


class Handshake(Struct, frozen=True):
    """A TLS handshake."""

    trust: Trust
    certificate: Certificate | None = None
    """Of the server. None: it could not be read."""
    error: str = ""
    """In the words of OpenSSL. Empty when it is trusted."""

    @property
    def is_good(self) -> bool:
        """Return whether both sides accept each other."""
        return self.trust is Trust.TRUSTED


class Wish(Struct, frozen=True):
    """How this side means to connect."""

    is_tls: bool = False
    ca_file: str = ""
    """Empty: the authorities of the system."""
    cert_file: str = ""
    """Empty: this side shows no certificate."""
    key_file: str = ""
    server_name: str = ""
    """To verify instead of the host. Empty: the host."""
    token_source: str = ""
    """Where its token comes from: a file, or the name of a variable. Empty: it has none."""
    token_mode: int = 0
    """Mode of the token's file. 0: it comes from no file."""
    error: str = ""
    """Why a file cannot be used. Empty: all can, or there is none."""
    certificate: Certificate | None = None
    """Its own. None: it shows none."""


class Caller(Struct, frozen=True):
    """Who this side is to the coordinator."""

    name: str
    role: str
    """`agent`, `operator`, `viewer`, or several with commas."""
    by: str
    """`token` or `certificate`."""
    jobs: tuple[str, ...] = ()
    """Patterns of the jobs it may use. Empty: all."""
    ends_in_s: float | None = None
    """Until its token ends. None: never."""


class About(Struct, frozen=True):
    """What the coordinator says about itself."""

    version: str
    protocol_min: int
    protocol_max: int
    clock_ahead_s: float
    """Its clock minus the one here."""
    clock_error_s: float
    """How far that may be wrong: half of the time of the call."""
    is_durable: bool = True
    is_reattaching: bool = False
    unserved_shards: int = 0
    is_relayed: bool = False
    """A relay has passed the call on to it."""
    is_protected: bool = False
    """True when it asks who calls."""
    caller: Caller | None = None
    """None when it does not ask."""


class Refusal(Struct, frozen=True):
    """How a call to what listens failed."""

    status: str
    """Name of the gRPC status."""
    reason: str
    """The constant of the refusal. Empty: the status is from gRPC itself."""
    text: str
    is_relayed: bool = False
    """It came through a relay, or from it."""


class Software(Struct, frozen=True):
    """What is installed here."""

    rallypoint: str
    protocol_min: int
    protocol_max: int
    python: str
    grpc: str


class Machine(Struct, frozen=True):
    """What this host allows its processes."""

    files_soft: int
    """Most open files of a process; -1: no limit."""
    files_hard: int
    """To which a process may raise it; -1: no limit."""
    shared_memory_bytes: int | None
    """Size of /dev/shm. None: there is none."""
    shared_memory_free_bytes: int = 0
    is_shared_memory_writable: bool = True
    port_low: int = 0
    """First port that the kernel chooses for a socket. 0: unknown."""
    port_high: int = 0
    """Last port that it chooses."""
    port_error: str = ""
    """Why no port could be opened. Empty: one could."""
    kernel: tuple[Need, ...] = ()
    """What agents need of the kernel."""
    startable: int = TASKS + TASKS_PER_WORKER
    """How many more processes and threads can start, up to what a small agent needs."""
    startable_advice: str = ADVICE_TASKS
    """What to do if they are too few."""
    folder_lack: str = ""
    """Why there can be no temporary files, and what to do. Empty: there can."""
