"""`python -m dynamo.replay`: traffic on a simulated fleet."""
