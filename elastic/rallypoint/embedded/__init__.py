"""The agent as a part of another program: in a thread, with workers that the program may run."""
