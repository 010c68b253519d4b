"""`inspect`: sizes as they lie on the disk."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grasp_deploy.checkpoint.write.quantize import quantize
from tests.cli.command import INSPECTED, document, edit_json, grasp_deploy
from tests.tiny import save_tiny

LAYER = {"num_attention_heads", "num_key_value_heads", "intermediate_size"}


def test_inspect_tells_what_lies_on_the_disk(tiny_folder: Path, pruned_once: Path) -> None:
    for folder in (tiny_folder, pruned_once):
        code = int(folder == pruned_once)  # some layers of the pruned model have two heads
        record = document("inspect", folder, "--json", "--tensor-parallel", "4", code=code)
        assert record.keys() >= INSPECTED
        assert all(layer.keys() == LAYER for layer in record["layers"])
        assert record["tensor_parallel"]["fits"] == (4 in record["tensor_parallel_sizes"])
        tensors = load_file(folder / "model.safetensors").values()
        assert record["weight_bytes"] == sum(tensor.nbytes for tensor in tensors)
        assert record["parameters"] == sum(tensor.numel() for tensor in tensors)


PREDICTIONS = (  # of the folder `model`
    "inspect model --json",
    "fit model --dry-run --json --gpu-memory 2GiB --concurrency 4 --context 64",
    "compress model --dry-run --json --keep 0.5 --gpu-memory 1GiB",
    "bench kv model --predict-only --json --gpu-memory 1GiB",
    "bench kv model --predict-only --json --gpu-memory 1GiB --random-weights",
    "synthesize model -o {} --keep 0.5 --json",
)


@pytest.mark.parametrize("stated", [("float32", None), (None, None), (None, "float16")])
def test_tensors_say_their_type_whatever_config_says(
    stated: tuple[str | None, str | None], work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def predicted(output: str) -> list[list[str]]:
        printed = [grasp_deploy(*line.format(output).split()).stdout for line in PREDICTIONS]
        return [re.findall(r'"(?:\w*bytes\w*": \d+|dtype.*)', text) for text in printed]

    save_tiny("llama", Path("model"), dtype=torch.bfloat16)
    before = predicted("before")
    edit_json(Path("model/config.json"), dtype=stated[0], torch_dtype=stated[1])
    assert all(before) and predicted("after") == before and not caplog.messages
    alone = grasp_deploy("inspect", "model/config.json", "--json")
    assert f'"dtype": "{stated[0] or stated[1] or "float32"}"' in alone.stdout
    assert ("float32 is assumed" in caplog.text) == (stated == (None, None))


def test_only_a_quantised_model_without_its_files_is_sized_as_if_plain(
    tiny_folder: Path, work: Path
) -> None:
    quantize(tiny_folder, "int8", work / "int8")
    for is_there in (True, False):
        assert ("as_if_plain" in document("inspect", "int8", "--json")) is not is_there
        said = grasp_deploy("inspect", "int8").stdout
        assert "compressed-tensors" in said and ("as if plain" in said) is not is_there
        assert "name a folder" in grasp_deploy("inspect", "int8/config.json").stdout
        (work / "int8" / "model.safetensors").unlink(missing_ok=True)
