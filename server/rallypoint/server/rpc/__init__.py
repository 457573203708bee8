"""gRPC adapters: they validate and translate, and decide nothing."""
