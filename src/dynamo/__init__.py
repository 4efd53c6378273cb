"""Dynamo: one OpenAI-compatible door in front of one or many inference engines."""

__version__ = "0.3.0.dev0"
