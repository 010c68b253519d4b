"""Benchmarks of models side by side: each function runs one and returns its record."""
