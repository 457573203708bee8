"""Agents: what runs the workers of one node, and what a program may override of it."""
