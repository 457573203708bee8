"""What the workers of this node do at one time: how they are armed, and what is collected."""
