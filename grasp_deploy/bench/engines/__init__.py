"""The child processes of the benches: one engine, or one load generator, in each."""
