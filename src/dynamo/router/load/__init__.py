"""The load of workers: what this router sent, what others booked, what workers report."""
