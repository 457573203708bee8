"""What an agent meets: its session, its reports as inputs, and the state that it should make."""
