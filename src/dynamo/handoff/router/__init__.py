"""The router's side of a hand-off: who computes a prompt, when that pays, and what was measured."""
