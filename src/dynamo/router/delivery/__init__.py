"""Delivers a request to a worker and moves it to another one when that fails."""
