"""Code that server, agent and command line share: limits, logging, the console."""
