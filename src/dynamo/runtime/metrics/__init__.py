"""Counters, gauges and histograms, and the text in which Prometheus reads them."""
