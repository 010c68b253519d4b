"""Methods that only studies use: `grasp-deploy compress --method benchmarks.baselines.MODULE:NAME`.

Each is `function(model, budget, text) -> (N,) scores`, higher for units to keep.
"""
