"""Converts messages from peers into inputs of the core, and checks every field, once.

A message that breaks the contract raises `InvalidMessage` with the path of the field. Nothing is
guessed; values of an enum that this version does not know are refused like unspecified ones.
"""
