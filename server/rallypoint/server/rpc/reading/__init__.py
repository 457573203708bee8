"""What readers get: answers of bounded size, built without holding up agents."""
