"""Runs as they are ordered, played by the Lab's process, stopped and kept."""
