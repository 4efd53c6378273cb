"""`dynamo serve FILE.yaml`."""
