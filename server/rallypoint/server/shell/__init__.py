"""The one task with state: inbox, turn, append, effects; its clock, and how it begins."""
