"""The little code that speaks the contract: channel options, durations, error details."""
