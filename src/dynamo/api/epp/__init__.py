"""The picker of a gateway: Envoy asks it over gRPC, for each HTTP request, which server answers."""
