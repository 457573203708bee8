"""Starts, stops and reports the workers of this node."""
