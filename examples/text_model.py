"""Save the language model inside a Gemma 3 or Ministral 3 with vision, so that `compress` takes it.

    python examples/text_model.py google/gemma-3-4b-it gemma-3-4b-text

The vision tower is left out. Vocabulary and weights of the language model stay as they are.
"""

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer


def main(model: str, output: str) -> None:
    whole: Any = AutoModelForImageTextToText.from_pretrained(model)
    config, words = whole.config.text_config, whole.model.language_model.embed_tokens
    # The weights decide: the config of the whole model may differ from its text config.
    config.tie_word_embeddings = whole.lm_head.weight is words.weight
    with torch.device("meta"):  # its weights are replaced below
        text = AutoModelForCausalLM.from_config(config)
    text.model, text.lm_head = whole.model.language_model, whole.lm_head
    text.generation_config = whole.generation_config
    text.save_pretrained(output)
    AutoTokenizer.from_pretrained(model).save_pretrained(output)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("give a model and the folder to write: text_model.py MODEL OUTPUT")
    main(*sys.argv[1:])
