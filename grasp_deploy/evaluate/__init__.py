"""How good a model is: perplexity on token blocks."""
