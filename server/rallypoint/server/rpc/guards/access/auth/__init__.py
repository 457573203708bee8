"""The auth file, and the rules that it has."""
