"""Save the language model of a Gemma 3 that also sees, which is what `compress` takes.

    python examples/text_model.py google/gemma-3-4b-it gemma-3-4b-text

The vision tower is left out. The words and weights of the language model stay as they are.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3ForConditionalGeneration


def main(model: str, output: str) -> None:
    whole: Any = Gemma3ForConditionalGeneration.from_pretrained(model)
    with torch.device("meta"):  # whose weights are replaced
        text = Gemma3ForCausalLM(whole.config.text_config)
    text.model, text.lm_head = whole.model.language_model, whole.lm_head
    text.generation_config = whole.generation_config
    text.save_pretrained(output)
    AutoTokenizer.from_pretrained(model).save_pretrained(output)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("give a model and the folder to write: text_model.py MODEL OUTPUT")
    main(*sys.argv[1:])
