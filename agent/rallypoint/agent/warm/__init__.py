"""Standbys: interpreters that have imported a worker's modules already and wait for a round."""
