"""Request bodies: read once, unpacked and decoded, within limits."""
