"""Measuring: load tests against any OpenAI-compatible server."""
