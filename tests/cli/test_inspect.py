"""`inspect`: sizes as they lie on the disk, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from tests.cli.command import INSPECTED, assert_refused, document, grasp_deploy

LAYER = {"num_attention_heads", "num_key_value_heads", "intermediate_size"}


def test_inspect_tells_what_lies_on_the_disk(tiny_folder: Path, pruned: Path) -> None:
    for folder in (tiny_folder, pruned):
        record = document("inspect", folder, "--json", "--tensor-parallel", "2")
        assert record.keys() >= INSPECTED
        assert all(layer.keys() == LAYER for layer in record["layers"])
        assert record["tensor_parallel"]["fits"] == (2 in record["tensor_parallel_sizes"])
        with safe_open(folder / "model.safetensors", "pt") as file:
            tensors = [file.get_tensor(name) for name in file.offset_keys()]
        assert record["weight_bytes"] == sum(tensor.nbytes for tensor in tensors)
        assert record["parameters"] == sum(tensor.numel() for tensor in tensors)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("MODEL", "--memory", "lots"), ("--memory 'lots'", "no size", "9GiB")),
        (("./nowhere",), ("no such folder: ./nowhere", "hub id")),
    ],
)
def test_what_it_refuses(
    tiny_folder: Path, work: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    named = [tiny_folder if argument == "MODEL" else argument for argument in arguments]
    assert_refused(grasp_deploy("inspect", *named), *words)
