"""llama.cpp as an engine (`out=llamacpp`): GGUF models, on a CPU or whatever its build supports."""
