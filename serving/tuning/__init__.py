"""The tunables' versions: stored first, then announced to the engines of a pool."""
