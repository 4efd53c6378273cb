"""The worker's side of KV events: from what an engine says about its cache to what routers are sent."""
