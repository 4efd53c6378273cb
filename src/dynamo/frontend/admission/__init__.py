"""Who is admitted: keys, limits, and origins of web pages."""
