"""What a training script shares with the other workers of its round."""
