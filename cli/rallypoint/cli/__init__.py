"""The commands: `rallypoint`, `coordinator` and `node-agent`."""
