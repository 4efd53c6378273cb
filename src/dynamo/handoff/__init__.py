"""Prompts computed by one worker and continued by another: messages, pairing, the record, and both sides."""
