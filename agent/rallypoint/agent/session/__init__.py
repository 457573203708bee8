"""The session with the coordinator: the connection and the translation of its messages."""
