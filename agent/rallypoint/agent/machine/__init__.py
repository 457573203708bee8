"""Facts about this machine: addresses, ports, devices, CPUs."""
