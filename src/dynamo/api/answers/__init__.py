"""How responses are written: errors, JSON, pages of lists, server-sent events."""
