"""The helper process, which is the parent of all workers, and the agent's interface to it."""
