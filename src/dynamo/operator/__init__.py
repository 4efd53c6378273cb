"""`python -m dynamo.operator`: graphs of a Kubernetes cluster become Deployments, and stay so."""
