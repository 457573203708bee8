"""BarrierService: who waits at barriers, and what they are answered."""
