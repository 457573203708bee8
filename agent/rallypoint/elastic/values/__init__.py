"""What an agent runs, and what becomes of it: specifications, workers, states and results."""
