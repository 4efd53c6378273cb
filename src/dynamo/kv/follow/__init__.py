"""Routers follow what workers cache: their events in order, and snapshots where events were missed."""
