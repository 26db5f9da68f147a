"""How a call reaches the core."""
