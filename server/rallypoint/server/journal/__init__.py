"""The durable, ordered record of decisions: one small interface and its stores."""
