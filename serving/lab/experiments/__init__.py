"""Experiments: runs that belong together, planned by what they are to show."""
