"""Limits that both sides of the protocol enforce. Only constants, so the cores may import them.

The ranges of messages stand in the .proto files. What the cores and the command line need of them
is repeated here, and a test compares the two. The command line checks its flags, so that a mistake
is reported before anything starts.
"""

from __future__ import annotations

PROTOCOL_VERSION_MIN, PROTOCOL_VERSION = 1, 1
"""Lowest and highest version of the session's protocol that agents and coordinators speak."""

# --- Names ---

JOB_ID_BYTES_MAX = 255

# --- Sizes ---

NODES_PER_JOB_MAX = 16_384
"""Sixteen times the largest job that was measured. Larger jobs would need a relay per rack."""
COUNT_MAX = 2**31 - 1
"""Restarts, re-formations and other counts of a specification."""
QUARANTINE_AFTER_MAX = 1_000
"""Failures of one node before a quarantine: the coordinator remembers when each happened."""

# --- Texts: what is longer is cut ---

TEXT_CHARS_MAX = 1_024
"""Reasons and other texts for people, and paths."""
PROGRAM_CHARS_MAX = 255
"""Name of the program that workers run: the longest name of a file."""
COMMAND_LINE_CHARS_MAX = 4_096
"""Command line of the workers, for readers of the job. It is compared by its digest."""
MESSAGE_CHARS_MAX = 4_096
"""Message of a worker's error."""
TRACEBACK_CHARS_MAX = 16_384
"""Traceback of a worker's error; its end counts."""

# --- Times ---

DURATION_MS_MAX = 30 * 86_400_000
"""30 days. A longer duration is probably a mistake, and refused."""
UNIX_MS_MAX = 32_503_680_000_000
"""The year 3000. A later time stamp is ignored."""
HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 100, 300_000
"""Time between heartbeats that a job may choose: 0.1 s to 5 minutes."""
LEASE_MS_MIN, LEASE_MS_MAX = 1_500, 3_600_000
"""Lease that a job may choose: 1.5 s to an hour. A coordinator that was stopped notices it after up
to half a second, and the last heartbeat may be a third of a lease old. A shorter lease would leave
no time for the network."""
BEATS_PER_LEASE = 3
"""Heartbeats that fit into a lease at least, so that one late heartbeat costs no node."""
FENCE_BEYOND_SHUTDOWN_MS = 3_000
"""A fence is longer than the shutdown timeout by this, or by three heartbeats if that is more: one
late heartbeat must not stop workers."""
