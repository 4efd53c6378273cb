"""`python -m dynamo.mocker`."""
