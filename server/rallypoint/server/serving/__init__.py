"""One state served: its services and its end."""
