"""The Python API: launch the workers of a job from a Python program, as TorchElastic does."""
