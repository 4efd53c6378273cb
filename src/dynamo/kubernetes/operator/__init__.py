"""The operator: graphs in the cluster are made into Deployments, and kept so."""
