"""Commands about graphs and clusters: `dynamo render`, `dynamo deploy`, and a graph for `dynamo serve`."""
