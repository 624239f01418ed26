"""Composition root: the only package that reads the environment, and the one that may import every other."""
