"""Serves agents whose sessions a relay carries, many on one stream."""
