"""Fit a model to a deployment: its memory, the ways to shrink it, and the result."""
