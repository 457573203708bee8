"""Where the output of workers goes."""
