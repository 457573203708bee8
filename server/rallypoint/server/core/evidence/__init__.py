"""What the evidence of all ranks says together: equal stacks, who waits for whom, the culprit."""
