"""Commands that change jobs and nodes: each asks for nothing, and says in a line what happened."""
