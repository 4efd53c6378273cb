"""The door: an OpenAI-compatible HTTP server over whatever workers discovery knows."""
