"""The round that a node holds: starts, signals, sweeps and reports its workers."""
