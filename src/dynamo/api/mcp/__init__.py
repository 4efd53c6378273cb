"""Tools of MCP servers that the operator has named. Nothing runs that a user has not approved."""
