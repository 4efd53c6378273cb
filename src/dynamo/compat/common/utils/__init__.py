"""Helpers that workers import by these names."""
