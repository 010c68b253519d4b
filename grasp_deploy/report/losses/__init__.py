"""The losses of models side by side: what a smaller or faster model costs, and the knee."""
