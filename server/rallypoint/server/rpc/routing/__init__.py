"""Answers every call on every coordinator: the owner of a job's shard decides, others forward."""
