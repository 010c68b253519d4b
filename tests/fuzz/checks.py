"""Damage that silently makes another model, and what then holds of a run that ends in 0."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import load_file
from transformers import AutoTokenizer

from grasp_deploy.checkpoint.footprint import inspect_model
from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.data import TextSource, read_blocks

SAMPLE = "Once upon a time there was 1 cat,  12345 naïve é\tñ\n日本語 <s></s><|im_end|>[INST]"
CLASSES = ("LlamaTokenizerFast", "GPT2Tokenizer", "PreTrainedTokenizerFast", "XTokenizer", None)
STATED: dict[str, Any] = {  # keys, and values of one of them
    "tokenizer_config.json": (("tokenizer_class",), CLASSES),
    "config.json": (("dtype", "torch_dtype"), ("float32", "float16", "bfloat16", None)),
}
LISTS, LABELS = ("conversations", "turns", "messages", "chat"), ("source", "id", "label", "title")
TURNS = ("", "role user content", "from human value")  # strings, or messages
CHANGES = {".json": (b"1e-06", b"1e-02"), ".safetensors": (b"\n", b"\v")}


def state(path: Path, draw: Random) -> None:
    """State something else, or nothing, in a family's folder, which is then `model`."""
    keys, values = STATED[path.name]
    stated = {key: value for key, value in json.loads(path.read_text()).items() if key not in keys}
    if value := draw.choice(values):
        stated[draw.choice(keys)] = value
    path.write_text(json.dumps(stated))
    shutil.rmtree(model := path.parents[2] / "model")
    path.parent.rename(model)


def ids_are_the_dense_ones() -> None:
    load = partial(AutoTokenizer.from_pretrained, local_files_only=True, trust_remote_code=False)
    dense, pruned = (load(folder)(SAMPLE)["input_ids"] for folder in ("model", "out"))
    assert dense == pruned, "other token ids"


def bytes_are_the_tensors() -> None:
    held = sum(tensor.nbytes for tensor in load_file("model/model.safetensors").values())
    assert inspect_model("model")["weight_bytes"] == held, "other weight bytes"


def label(path: Path, draw: Random) -> None:
    """Lists, of strings or of messages, beside a column of one string."""
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    (name, column), keys = (draw.choice(LISTS), draw.choice(LABELS)), draw.choice(TURNS).split()
    turns = [{keys[0]: keys[1], keys[2]: text} if keys else text for text in texts]
    rows = [{column: "stackexchange", name: [turn]} for turn in turns]
    path.write_text("\n".join(map(json.dumps, rows)))


def text_is_read() -> None:
    tokenizer = load_tokenizer(Path("model"))
    read = read_blocks(tokenizer, TextSource("rows.jsonl"), 16, 4).token_ids
    assert "fox" in tokenizer.decode(read.flatten()), "a label is read as text"


def part_ranks(path: Path, draw: Random) -> None:
    """Give a second rank files of its own in `other`, with one of them changed, or none."""
    world = path.parents[1]
    shutil.copytree(world / "model", world / "other/model")
    shutil.copy(world / "text.txt", world / "other")
    if draw.random() < 0.8:
        content = path.read_bytes().replace(*CHANGES[path.suffix])
        (world / "other" / path.relative_to(world)).write_bytes(content)


def ranks_agree() -> None:
    files = [path for path in Path("other").rglob("*") if path.is_file()]
    same = (path.read_bytes() == Path(*path.parts[1:]).read_bytes() for path in files)
    assert all(same), "two ranks, two models"
