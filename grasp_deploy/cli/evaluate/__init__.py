"""`grasp-deploy evaluate`: perplexity, task accuracy and the quality card."""
