"""How much one host may use of the coordinator.

A host is an IPv4 address, or the first 64 bits of an IPv6 address: that is one customer or one
machine, who may choose the rest. Behind one address there can be a whole cluster, so every limit
leaves room for the largest job (16,384 nodes) twice. The limits stop programs that are broken or
that want to keep others out. They do not replace authentication.
"""

from __future__ import annotations

from rallypoint.base.limits import NODES_PER_JOB_MAX
from rallypoint.server.core.model.job import JOBS_MAX

HELLO_S_MAX = 10.0
"""Longest wait for the Hello of a new stream."""
REQUEST_S_MAX = 10.0
"""Longest wait for the request of a new call."""
REQUESTS_PER_HOST_MAX = 4_096
"""Calls of a host whose request has not arrived. Clients send it together with the call, so few
wait even when all workers of the largest job call at once. Each takes about 10 KB."""
UNREAD_BYTES_PER_HOST_MAX = 64 * 1024 * 1024
"""Bytes of the answers of calls that a host has not read: 16,384 ranks that read 4 KB of keys each
at once. A client reads its answers as they come, so more wait only where one does not."""
RETRY_S = 5.0
"""When to try again: the agents of a large job, refused all at once, must not return at once."""
ATTEMPTS_PER_MINUTE_MAX = 600
"""Failed attempts of a host to authenticate: more than the agents of a rack whose token has been
replaced. A valid token or certificate always opens the door: behind one address there can be a
whole cluster, and one faulty agent must not lock the others out."""
REFUSALS_AT_ONCE_MAX = 1_024
"""Refused calls of a host that are answered at once: more than the agents of a rack that start with
a wrong flag. Later ones wait for their answer, and their callers with them."""
REFUSALS_PER_S_MAX = 64
"""Refused calls of a host that are answered in each second after that. They take 2% of the
coordinator's time."""
RESTING_PER_HOST_MAX = 4_096
"""Refused calls of a host that wait for their answer. Each takes about 25 KB."""
RESTING_BYTES_PER_HOST_MAX = 16 * 1024 * 1024
"""Bytes of their messages."""
STREAMS_PER_HOST_MAX = 2 * NODES_PER_JOB_MAX
"""Open streams of agents. When the network fails, every agent of the largest job may open its next
stream before its last one has ended. A stream takes about 45 KB."""
STREAMS_PER_RELAY_MAX = 1_024
"""Agents of one relay. A relay is for a rack: this leaves room for several."""
SESSIONS_AT_ONCE_MAX = 2 * NODES_PER_JOB_MAX
"""New sessions that a host may open in one instant: the largest job starts, fails and starts again,
or finds a new coordinator, which knows none of its sessions."""
SESSIONS_PER_MINUTE_MAX = NODES_PER_JOB_MAX
"""New sessions per minute after that: the largest job starts once a minute. So opening sessions
takes at most a tenth of the coordinator's time."""
NEW_RUNS_AT_ONCE_MAX = 512
"""Runs that new sessions of a host may open in one instant: some hundred jobs start from one login
host, or from behind one address. To open one takes some milliseconds."""
NEW_RUNS_PER_MINUTE_MAX = 960
"""Such runs per minute after that: 16 a second take less than a tenth of the coordinator's time."""
JOBS_PER_HOST_MAX = JOBS_MAX * 3 // 4
"""Jobs in which agents of a host take part. The rest of the coordinator's jobs is for others."""
JOBS_PER_TOKEN_MAX = JOBS_PER_HOST_MAX
"""The same for agents with one token that is bound to jobs, from whatever hosts. One that is good
for all jobs is the site's own."""
WATCHERS_PER_JOB_MAX = 256
"""Watchers of one job. Each may hold one encoded answer."""
WATCHERS_PER_HOST_MAX = 64
"""Watchers on one host, of one job or of all, so that one faulty client leaves room for the
others."""
JOBS_WATCHERS_MAX = 1_024
"""Watchers of all jobs. Each may hold an answer of 1 MiB for half a minute."""
KEY_WAITS_PER_JOB_MAX = 65_536
"""Calls of one job that wait for keys: one for each of 64,000 ranks."""
KEY_WATCHES_PER_JOB_MAX = 1_024
"""Watches of keys of one job. Each change that concerns them all wakes them all."""
KEY_WATCHES_PER_HOST_MAX = 1_024
"""Watches of keys on one host, of all jobs. One that does not read may hold an answer of 64 KiB for
half a minute."""
EVENT_WATCHES_PER_JOB_MAX = 256
"""Watches of the events of one job, and as many of the events of all jobs."""
EVENT_WATCHES_PER_HOST_MAX = 64
"""Watches of events on one host. One that does not read may hold an answer of 1 MiB."""
HEALTH_WATCHES_PER_HOST_MAX = 64
"""Watches of the health on one host. Anyone may begin one, and each takes about 22 KB."""
REFLECTIONS_PER_HOST_MAX = 64
"""Streams of one host that ask for the contract. A tool opens one, for a moment."""
HOSTS_MAX = 4_096
"""Hosts whose new sessions, failed attempts or refused calls are counted: the latest ones."""
LINES_PER_MINUTE_MAX = 30
"""Lines of the log of each kind that a host may cause, as far as they are not about its jobs."""
LINES_PER_RELAY_MAX = 10 * LINES_PER_MINUTE_MAX
"""The same for all hosts together that a relay names: a rack may start at once."""
WARNED_S_MIN = 60.0
"""Shortest time between two warnings in the log about one host."""
RUNS_PER_MINUTE_MAX = 128
"""Runs opened by one host in a minute that have lines in the log: with the longest names, a run has
3 KB of lines."""
RUNS_PER_RELAY_MAX = 4 * RUNS_PER_MINUTE_MAX
"""The same of all hosts that a relay carries."""
