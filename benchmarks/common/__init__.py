"""Options, output, models and plans that studies share."""
