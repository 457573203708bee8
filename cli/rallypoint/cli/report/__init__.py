"""The reports of an agent about its job, besides its log."""
