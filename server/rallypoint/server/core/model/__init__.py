"""The values of the coordinator's core: jobs, rounds, nodes, workers, verdicts. All are frozen."""
