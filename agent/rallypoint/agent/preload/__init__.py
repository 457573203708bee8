"""Workers that are forked from one process, which has imported what they need."""
