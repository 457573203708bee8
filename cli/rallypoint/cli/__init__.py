"""The commands `coordinator` and `node-agent`."""
