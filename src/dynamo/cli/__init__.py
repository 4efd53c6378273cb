"""The commands of the terminal, a folder each."""
