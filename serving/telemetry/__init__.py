"""What was measured: intervals, counters and gauges of all processes, merged into one live frame a pool."""
