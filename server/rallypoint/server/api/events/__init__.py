"""EventService: what has happened to jobs."""
