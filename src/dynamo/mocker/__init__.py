"""`python -m dynamo.mocker`: workers that imitate vLLM without a GPU."""
