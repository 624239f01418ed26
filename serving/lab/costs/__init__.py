"""What a step costs: a model of it, fitted to an engine's own records."""
