"""Evidence: asked of agents, collected, compared, kept and shown."""
