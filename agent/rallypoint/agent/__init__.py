"""The node agent: owns the worker processes of one node and does what the coordinator decides."""
