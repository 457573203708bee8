"""The coordinator: a pure core, one stateful shell, a journal and the gRPC services."""
