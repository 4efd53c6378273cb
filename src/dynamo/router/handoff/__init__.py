"""Prompts computed by one worker and continued by another: pairing, the rule, the record, and what was measured."""
