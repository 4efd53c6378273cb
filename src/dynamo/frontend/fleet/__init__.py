"""What the fleet does now, as a stream for people who look at it."""
