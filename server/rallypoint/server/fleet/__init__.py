"""Several coordinators on one store: who owns which shard, and how each answers for all jobs.

Only a coordinator with such a store loads this room.
"""
