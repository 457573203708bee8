"""What operators do with whole jobs: cancel, restart, update, delete."""
