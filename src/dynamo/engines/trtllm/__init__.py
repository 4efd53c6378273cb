"""TensorRT-LLM, which a user installs beside this package. Written after its published API; not run by this project."""
