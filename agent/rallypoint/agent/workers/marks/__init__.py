"""What workers tell their agent of their way to the first step."""
