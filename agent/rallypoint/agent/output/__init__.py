"""The output of workers: its destinations, its files and pipes, and the console."""
