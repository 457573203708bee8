"""The plan of a launch: what every way to start an agent fills in, and what follows from it."""
