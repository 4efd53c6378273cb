"""Experiments in virtual time: simulate a fleet, replay traffic, plan how many workers it needs, profile engines."""
