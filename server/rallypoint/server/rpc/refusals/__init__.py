"""What each refusal of the coordinator looks like to its caller."""
