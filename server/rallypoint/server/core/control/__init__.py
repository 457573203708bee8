"""What operators do with jobs and nodes: create, cancel, restart, update, delete; drain, cordon."""
