"""The node agent: owns the worker processes of one node and carries out the coordinator's
decisions."""
