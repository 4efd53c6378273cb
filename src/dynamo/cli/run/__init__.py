"""dynamo-run: one command for a chat, a server, a batch or a worker."""
