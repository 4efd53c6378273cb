"""An OpenAI-compatible HTTP server for the workers found by discovery."""
