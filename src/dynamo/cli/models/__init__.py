"""`dynamo pull`, `dynamo list` and `dynamo rm`: the models on this machine."""
