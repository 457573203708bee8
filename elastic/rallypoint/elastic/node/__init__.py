"""One node's part in a job, in a thread beside the program that runs it."""
