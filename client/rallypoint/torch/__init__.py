"""For programs with torch: a rendezvous back end of `torchrun`, and a store for the workers."""
