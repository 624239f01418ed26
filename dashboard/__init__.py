"""The operator's console. Reads through the other packages' selectors; nothing but the composition root imports it."""
