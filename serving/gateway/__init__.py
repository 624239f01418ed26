"""The client side of the contracts: owns each request until it ends, turns tokens into text, survives engines."""
