"""Answers about all jobs, put together from what every shard answers."""
