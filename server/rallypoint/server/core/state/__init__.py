"""The coordinator's state, and the changes of one step."""
