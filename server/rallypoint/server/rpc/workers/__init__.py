"""WorkerService: what workers report about themselves."""
