"""Nodes that attach, report, disconnect and return."""
