"""Who may open, resume or read what, before the core decides anything."""
