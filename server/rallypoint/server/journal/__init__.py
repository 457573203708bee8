"""The ordered record of decisions: an interface, and the places that keep it."""
