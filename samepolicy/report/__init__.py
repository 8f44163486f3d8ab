"""Showing results: `data` is the one JSON value of each, `text` and `measures` the same for a terminal."""
