"""The journal of one shard in etcd: every append is conditional on owning the shard."""
