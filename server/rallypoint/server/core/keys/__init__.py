"""Key-value: what workers write, and when it is dropped."""
