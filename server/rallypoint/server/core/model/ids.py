"""Identifiers of jobs, agents and nodes."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
SessionId = NewType("SessionId", str)
"""Incarnation of an agent: 32 hexadecimal digits, one per agent process."""
NodeName = NewType("NodeName", str)
