"""KeyValueService: what workers write and read, and who waits for keys."""
