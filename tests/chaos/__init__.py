"""Faults against real processes, in an order that a seed decides; every answer must be that of the undisturbed run."""
