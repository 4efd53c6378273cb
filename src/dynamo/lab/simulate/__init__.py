"""Simulates a fleet in virtual time with the router, delivery and scheduler that serve: `simulate(config, traffic)`."""
