"""dynamo-run: one command from nothing to a chat, a server, a batch or a cluster."""
