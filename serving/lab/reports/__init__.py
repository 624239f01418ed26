"""Runs as files: JSON, CSV, and a page that needs nothing else. Pure functions."""
