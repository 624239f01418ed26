"""Text and tokens: what a model's folder says of both. No other part of a serving process decodes a token."""
