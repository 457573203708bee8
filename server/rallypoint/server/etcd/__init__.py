"""The client of etcd: several endpoints, TLS, typed errors. The only room that imports `aetcd`."""
