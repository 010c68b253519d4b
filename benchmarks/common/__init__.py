"""What several studies share: options, output, models and plans."""
