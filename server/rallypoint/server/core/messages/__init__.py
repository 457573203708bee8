"""The inputs of a step and its results: effects, records, refusals."""
