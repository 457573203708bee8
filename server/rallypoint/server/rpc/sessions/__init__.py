"""What every connection of an agent has in common, whichever way its messages come."""
