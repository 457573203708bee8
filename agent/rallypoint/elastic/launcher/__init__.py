"""Launches the workers of a job from a Python program."""
