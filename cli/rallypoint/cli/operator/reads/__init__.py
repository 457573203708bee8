"""Commands that only read: jobs, their events, and why they wait or failed."""
