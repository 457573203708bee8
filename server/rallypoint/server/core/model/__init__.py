"""The values of the coordinator's core: jobs, rounds, nodes, workers, verdicts. All are frozen.

Only the keys of a run (`keyspace`) and the log of events (`events`) change in place: the state and
a replay of the journal apply the same changes to them, with the code that stands here.
"""
