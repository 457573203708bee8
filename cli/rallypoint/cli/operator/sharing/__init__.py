"""What the workers of a job share: the barriers where they wait, and their keys."""
