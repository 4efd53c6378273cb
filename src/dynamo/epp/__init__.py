"""`python -m dynamo.epp`: the picker of a gateway."""
