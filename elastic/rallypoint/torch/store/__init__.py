"""A `torch.distributed.Store` at the coordinator, and what torch's stores are used for."""
