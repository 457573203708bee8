"""Code that both sides of the protocol need: channel options, durations, error details."""
