"""Perplexity of models side by side on one text."""
