"""Judges facts: each check returns findings, and does no IO."""
