"""The keys and values of a run: what they are, and how a change is applied."""
