"""The APIs that clients speak, a folder each, and what their handlers share."""
