"""gRPC adapters: validation and translation at the edge, no policy."""
