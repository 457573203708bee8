"""A relay: carries the sessions of many agents to the coordinator on one stream.

It keeps no state: it may die at any moment, and another one takes over. It reads no
message of an agent. `serve` puts it together.
"""
