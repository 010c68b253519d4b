"""Few items about nothing, in the three layouts, and what a model's answers are worth by hand."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.tiny import logits_of

needs_lm_eval = pytest.mark.skipif(
    find_spec("lm_eval") is None, reason="lm-eval is not installed (the extra eval)"
)
WORDS = ("cat", "a longer answer", "dog", "tea", "over there", "42")


def write_items(folder: Path) -> dict[str, Path]:
    """A file for each layout, called after it."""
    rows: dict[str, list[dict[str, Any]]] = {"query": [], "contexts": [], "hellaswag": []}
    for index in range(12):
        choices = [WORDS[(index + step) % len(WORDS)] for step in (0, 1, 3)]
        gold = index % 3
        rows["query"].append({"query": f"Question: {index}?", "choices": choices, "gold": gold})
        contexts = {"context_options": [f"{choice} was" for choice in choices], "gold": gold}
        rows["contexts"].append({**contexts, "continuation": f"number {index}."})
        text = {"activity_label": "Counting", "ctx_a": f"It is {index}.", "ctx_b": "then"}
        rows["hellaswag"].append({**text, "endings": choices, "label": gold})
    paths = {}
    for name, lines in rows.items():
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return paths


def expected(model: PreTrainedModel, layout: str, row: dict[str, Any]) -> dict[str, Any]:
    """Log-likelihoods and accuracies of an item, token by token; a byte is a token."""
    if layout == "contexts":
        pairs = [(context, f" {row['continuation']}") for context in row["context_options"]]
        lengths = [1.0] * len(pairs)
    elif layout == "query":
        pairs = [(f"{row['query']}\nAnswer:", f" {choice}") for choice in row["choices"]]
        lengths = [float(len(choice)) for choice in row["choices"]]
    else:
        text = f"Counting: {row['ctx_a']} Then"
        pairs = [(text, f" {ending}") for ending in row["endings"]]
        lengths = [float(len(ending)) for ending in row["endings"]]
    scores = [_log_likelihood(model, *pair) for pair in pairs]
    gold = row["label" if layout == "hellaswag" else "gold"]
    normed = [score / length for score, length in zip(scores, lengths, strict=True)]
    result: dict[str, Any] = {"loglikelihoods": scores, "acc": float(_best(scores) == gold)}
    if layout != "contexts":
        result["acc_norm"] = float(_best(normed) == gold)
    return result


def _best(scores: list[float]) -> int:
    return scores.index(max(scores))


def _log_likelihood(model: PreTrainedModel, context: str, continuation: str) -> float:
    ids = torch.tensor([[*context.encode(), *continuation.encode()]])
    scores = logits_of(model, ids[:, :-1])[0].double().log_softmax(-1)
    new = len(continuation.encode())
    return scores[-new:].gather(1, ids[0, -new:, None]).sum().item()
