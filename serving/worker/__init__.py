"""The one process that owns an Engine: its host loop, the Redis side of the contracts, its life."""
