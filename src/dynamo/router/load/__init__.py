"""The load of workers: what this router sent, what others reserved, what workers report."""
