"""A small authority for those who have none, and new tokens."""
