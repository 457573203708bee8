"""The ordered record of decisions: an interface, and the journal in memory."""
