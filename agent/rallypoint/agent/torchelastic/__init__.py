"""Formats and protocols of TorchElastic: events, error files, timers, log plug-ins."""
