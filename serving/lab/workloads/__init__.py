"""Workloads: what traffic is like, written by hand or measured, and the requests that follow from it."""
