"""The real scheduler with a virtual clock and a model of what its steps cost."""
