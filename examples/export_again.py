"""Export a checkpoint again from its plan, and compare perplexity before and after pruning.

python examples/export_again.py DIR OUTPUT
"""

import sys
import tempfile
from pathlib import Path

from grasp_deploy import export, load, load_plan
from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.data import TextSource, read_blocks
from grasp_deploy.demo.run import write_text
from grasp_deploy.evaluate.perplexity import perplexity

directory, output = Path(sys.argv[1]), Path(sys.argv[2])
plan = load_plan(directory / "plan.grasp")
base = plan.provenance["model"]
export(plan, base, output)
same = (directory / "model.safetensors").read_bytes() == (output / "model.safetensors").read_bytes()
print(f"the same weights, byte for byte: {same}")

with tempfile.TemporaryDirectory() as folder:
    _, heldout = write_text(Path(folder))
    blocks = read_blocks(load_tokenizer(output), TextSource(str(heldout)), 128, 8)
for name in (base, output):
    measured = perplexity(load(name, device="cpu"), blocks)
    print(f"perplexity {measured.perplexity:.2f} of {name}")
