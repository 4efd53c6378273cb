"""The workers' side of a hand-off: compute and offer, take and go on."""
