"""The part of both forms of the client that changes jobs and nodes."""
