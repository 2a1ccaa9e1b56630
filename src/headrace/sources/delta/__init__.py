"""Delta tables as streaming sources."""
