"""How good a model is: perplexity on text, and accuracy on tasks."""
