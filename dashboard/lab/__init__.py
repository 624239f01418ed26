"""The Lab's pages."""
