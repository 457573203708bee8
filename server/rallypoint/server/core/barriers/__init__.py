"""Barriers: where the participants of a round or a run wait for each other."""
