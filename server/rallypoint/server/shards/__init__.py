"""Divides jobs among coordinators: shards, who owns which, and what an owner may be sure of."""
