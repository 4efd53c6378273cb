"""One connection to NATS for the request plane and the event plane of a process."""
