"""How an agent leaves its job: after a signal or a drain, or because no coordinator answers."""
