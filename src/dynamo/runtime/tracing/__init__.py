"""OpenTelemetry spans of this process, imported only where spans are exported."""
