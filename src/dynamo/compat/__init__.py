"""What exists for programs written for ai-dynamo: its import paths, names and shapes. Nothing inside depends on it."""
