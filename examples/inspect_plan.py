"""Show what a plan decided: its budget, its losses, and what each layer keeps.

python examples/inspect_plan.py DIR
"""

import sys
from pathlib import Path

from grasp_deploy import load_plan
from grasp_deploy.pruning.units import UnitTable

plan = load_plan(Path(sys.argv[1]) / "plan.grasp")
budget, losses = plan.provenance["budget"], plan.provenance["losses"]
print(f"base model: {plan.provenance['model']}")
print(f"cost: {budget['kept_cost']:,.0f} of at most {budget['limit']:,.0f}")
print(
    f"held-out loss: {losses['heldout_dense']:.3f} -> {losses['heldout_pruned']:.3f} nats a token"
)

units = UnitTable.of_layers(plan.dense_layers)
kept_layers = units.kept_per_layer(plan.mask)
print("layer  FFN channels    KV groups")
for index, (kept, dense) in enumerate(zip(kept_layers, plan.dense_layers, strict=True)):
    print(f"{index:5}  {kept[0]:5} of {dense[0]:5}  {kept[1]:3} of {dense[1]:3}")
