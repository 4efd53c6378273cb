"""What a program starts inside itself: an HTTP service over its own generators, or what `dynamo-run` would start."""
