"""Puts shards together, and serves those that this coordinator owns."""
