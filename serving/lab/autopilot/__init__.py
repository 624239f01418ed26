"""The autopilot: holds an SLO by moving named tunables within bounds, one step at a time."""
