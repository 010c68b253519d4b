"""Load a pruned checkpoint with transformers and continue a prompt.

python examples/generate.py DIR [PROMPT]
"""

import sys
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

import grasp_deploy

grasp_deploy.register()  # the pruned classes, so that no remote code is needed
directory = sys.argv[1]
prompt = sys.argv[2] if len(sys.argv) > 2 else "Return a new list containing"

tokenizer = AutoTokenizer.from_pretrained(directory)
model: Any = AutoModelForCausalLM.from_pretrained(directory)
inputs = tokenizer(prompt, return_tensors="pt")
tokens = model.generate(**inputs, max_new_tokens=24, do_sample=False)
print(tokenizer.decode(tokens[0], skip_special_tokens=True))
