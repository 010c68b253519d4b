"""Studies of the method and of its checkpoints; run one with `python -m benchmarks.NAME`."""
