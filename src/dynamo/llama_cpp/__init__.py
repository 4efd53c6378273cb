"""The engine llamacpp as a worker of its own: not in this build yet."""
