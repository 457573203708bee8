"""The life of a round: forming, ranks, running, draining, stopping."""
