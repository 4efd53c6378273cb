"""`dynamo inspect`."""
