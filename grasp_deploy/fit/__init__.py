"""Fit a model to a deployment: what it takes, what could be done, and what came of it."""
