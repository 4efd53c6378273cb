"""Ollama's API, so that its clients connect."""
