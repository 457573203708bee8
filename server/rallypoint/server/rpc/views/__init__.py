"""Converts values of the core into messages for agents and readers. Decides nothing."""
