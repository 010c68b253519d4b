"""Losses on text, accuracy on tasks, and the quality card of a checkpoint."""
