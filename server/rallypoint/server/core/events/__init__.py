"""What has happened to jobs, in order: the kinds of events, and the log that holds them."""
