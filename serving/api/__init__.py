"""The OpenAI-compatible API and the steering API: the only place that knows HTTP."""
