"""The edge of gRPC that all services share: bounds of fields, refusals, pages, and messages.

Each message is checked once against the ranges in the .proto files (`bounds`); the converters add
the rules about several fields. A message that breaks the contract raises `InvalidMessage` with the
path of the field. Facts are brought into their range, and what a newer version adds is ignored or
kept, so that no upgrade ends a running round.

A module for each message that both agents and others meet has both ways: `to_` makes a value of the
core, and `_message` shows one.
"""
