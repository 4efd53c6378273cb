"""What routers count and measure, and the metric families made from it."""
