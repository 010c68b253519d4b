"""Show what a plan decided: its budget, its losses, and what each layer keeps.

python examples/inspect_plan.py DIR
"""

import sys
from pathlib import Path

from grasp_deploy import load_plan
from grasp_deploy.pruning.units import UnitTable
from grasp_deploy.stats.wording import amount

plan = load_plan(Path(sys.argv[1]) / "plan.grasp")
budget, losses = plan.provenance["budget"], plan.provenance["losses"]
print(f"base model: {plan.provenance['model']}")
print(f"cost: {amount(budget['kept_cost'])} of at most {amount(budget['limit'])}")
if losses["heldout_dense"] is None:
    print("held-out loss: nothing was held out")
else:
    dense_loss, pruned_loss = losses["heldout_dense"], losses["heldout_pruned"]
    print(f"held-out loss: {dense_loss:.3f} -> {pruned_loss:.3f} nats a token")

units = UnitTable.of_layers(plan.dense_layers)
kept_layers = units.kept_per_layer(plan.mask)
print("layer  FFN channels or experts  KV groups")
for index, (kept, dense) in enumerate(zip(kept_layers, plan.dense_layers, strict=True)):
    print(f"{index:5}  {kept[0]:9} of {dense[0]:9}  {kept[1]:3} of {dense[1]:3}")
