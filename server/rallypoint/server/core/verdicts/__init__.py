"""The culprit of a failure, the cost of a failure, and the health of nodes."""
