"""Where workers write: decided, opened, moved, shown."""
