"""Signals to the workers of a round."""
