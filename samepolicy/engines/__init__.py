"""Engines: what gives the log-prob of a token, one file per kind."""
