"""Runs: what both sides recorded about the same responses, in memory and on disk."""
