"""Values that cross a process: what web, engine, monitor and jobs say to each other.

Imports msgspec and the standard library only, so that every process can afford it.
"""
