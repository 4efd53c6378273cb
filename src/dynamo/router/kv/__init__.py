"""KV-aware routing.

`index` knows which ranks hold which blocks, `load` what was sent where, `choice` prices the candidates, `sync` keeps
index and load true; `router` puts them together.
"""
