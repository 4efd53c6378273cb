"""The pages of the server for people: static files without a build step. `static/` is what browsers get."""
