"""A scoreboard of router rules on recorded traffic: `dynamo rules`."""
