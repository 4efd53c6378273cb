"""`dynamo top`."""
