"""The tuning process in seven steps: what is known of each, what follows, and doing again what no longer holds."""
