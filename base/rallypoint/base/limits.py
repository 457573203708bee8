"""Limits that both sides of the protocol enforce. Only constants, so the cores may import them.

The coordinator checks every message against them; the command line checks its flags, so that a
mistake is reported before anything starts.
"""

from __future__ import annotations

PROTOCOL_VERSION = 1

# --- Names ---

JOB_ID_BYTES_MAX = 255
NAME_BYTES_MAX = 253
"""Names of nodes and roles, and addresses: the longest DNS name."""
LABELS_MAX = 32
LABEL_CHARS_MAX = 256
"""Characters of a label's key, and of its value."""

# --- Sizes ---

NODES_PER_JOB_MAX = 16_384
"""Sixteen times the largest job that was measured. Larger jobs would need a relay per rack."""
WORKERS_PER_NODE_MAX = 4_096
QUARANTINE_AFTER_MAX = 1_000
"""The coordinator remembers this many failures of each node that fails."""

# --- Texts: what is longer is cut ---

TEXT_CHARS_MAX = 1_024
"""Reasons and other texts for people, and paths."""
MESSAGE_CHARS_MAX = 4_096
"""Message of a worker's error."""
TRACEBACK_CHARS_MAX = 16_384
"""Traceback of a worker's error; its end counts."""
STDERR_CHARS_MAX = 4_096
"""End of a worker's standard error."""

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
