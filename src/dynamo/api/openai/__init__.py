"""OpenAI's chat completions, completions, embeddings, files and batches, and vLLM's routes beside them."""
