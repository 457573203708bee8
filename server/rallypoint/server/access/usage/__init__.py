"""What each host and job uses, and how much it may."""
