"""Who may enter: tenants and their API keys, and the bounds of the waiting room."""
