"""What other systems are told of an update while it runs: metrics and traces."""
