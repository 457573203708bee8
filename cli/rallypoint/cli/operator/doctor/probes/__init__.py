"""Finds facts: about the network, the coordinator and this host. Every probe has a time limit."""
