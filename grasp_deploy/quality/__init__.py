"""The quality card: what a checkpoint lost, measured and judged, and put into its model card."""
