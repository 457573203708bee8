"""Functions as workers: what they are called with, how they start, and what they return."""

from __future__ import annotations

from rallypoint.elastic.functions.launch import FunctionLaunch, ResultUnreadable, StartMethod
from rallypoint.elastic.functions.payload import UnpicklableFunction

__all__ = ["FunctionLaunch", "ResultUnreadable", "StartMethod", "UnpicklableFunction"]
