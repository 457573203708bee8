"""What the coordinator says about itself."""
