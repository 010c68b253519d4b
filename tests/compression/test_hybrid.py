"""A model with linear attention in some layers, as it lies in one that also sees."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.checkpoint.limits import (
    check_tensor_parallel,
    check_vllm_runs,
    tensor_parallel_sizes,
)
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.validate import read_folder
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import RunOptions, Start
from grasp_deploy.errors import InputError
from tests.compression.conftest import Killed, MakeConfig, kill_in
from tests.tiny import RANDOM, VARIANTS, logits_of, save_tiny, stated, tiny_config

IDS = torch.arange(1, 25)[None]
IN_FLOAT32 = ("A_log", "linear_attn.norm.weight")


def save_whole(folder: Path, **changes: object) -> None:
    """The folder of a model that also sees and drafts, with the tensors of Qwen3.5 in float32."""
    model = save_tiny(directory=folder, dtype=torch.bfloat16, **VARIANTS["qwen3-5"])
    tensors = {
        name.replace("model.", "model.language_model.", 1): t.float()
        if name.endswith(IN_FLOAT32)
        else t
        for name, t in model.state_dict().items()
    }
    others = {name: torch.ones(2, 2) for name in ("model.visual.merger.weight", "mtp.fc.weight")}
    save_file({**tensors, **others}, folder / "model.safetensors", {"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    text["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    text |= {"mtp_num_hidden_layers": 1, "attn_output_gate": True, "mamba_ssm_dtype": "float32"}
    whole = {
        **{"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]},
        **{"text_config": text | changes, "vision_config": {}, "image_token_id": 255},
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(whole))


def test_the_language_model_is_cut_and_the_rest_is_left_out(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base, output = tmp_path / "model", tmp_path / "out"
    save_whole(base)
    config = make_config(model=str(base), keep=0.6, method="progressive", rounds=1)
    plan = compress(config, RunOptions(output)).plan
    assert caplog.text.count("vision tower and MTP head are left out") == 1
    assert all(check.ok for check in verify(output))
    assert [groups for _, groups in plan.dense_layers] == [0, 2, 2]
    shape, cut = read_folder(output).shape, load_file(output / "model.safetensors")
    assert shape.weight_bytes == sum(t.nbytes for t in cut.values())
    assert {name for name, t in cut.items() if t.dtype == torch.float32} == shape.in_float32
    assert len(shape.in_float32) == 2 and not any("visual" in n or "mtp" in n for n in cut)
    keys = [t for name, t in cut.items() if "k_proj" in name]
    assert shape.kv_bytes_per_token() == sum(2 * 2 * len(t) for t in keys)
    state = 3 * 512 * 2 + 2 * 128 * 128 * 4  # of the convolution, and of two heads in float32
    assert shape.state_bytes_per_sequence == state
    config = json.loads((output / "config.json").read_text())
    assert "text_config" not in config and config["per_layer_config"]["0"].keys() == {
        "intermediate_size"
    }
    dense, pruned = (logits_of(load(path, dtype="float32"), IDS) for path in (base, output))
    assert dense.shape == pruned.shape and not torch.equal(dense, pruned)


@pytest.mark.slow
def test_a_recovery_keeps_what_is_in_float32(make_config: MakeConfig, tmp_path: Path) -> None:
    """Also one by itself, and one that goes on after a kill."""
    base, cut = tmp_path / "model", tmp_path / "cut"
    save_whole(base)
    quick = {"keep": 0.6, "method": RANDOM, "scale_epochs": 0}
    config = make_config(model=str(base), recover=4096, **quick)
    whole = compress(config, RunOptions(tmp_path / "whole")).plan
    with pytest.raises(Killed):
        compress(config, RunOptions(tmp_path / "out", on_progress=kill_in("recovery", 3)))
    assert compress(config, RunOptions(tmp_path / "out", resume=True)).plan.fitted == whole.fitted
    compress(replace(config, recover=None), cut)
    compress(config, RunOptions(tmp_path / "healed"), Start(checkpoint=cut))
    for folder in (tmp_path / "out", tmp_path / "healed"):
        shape, tensors = read_folder(folder).shape, load_file(folder / "model.safetensors")
        wide = {name for name, t in tensors.items() if t.dtype == torch.float32}
        assert wide == shape.in_float32 and len(wide) == 2
        assert all(check.ok for check in verify(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": 3 * ["linear_attention"]}, "one at least the latter"),
        ({"layer_types": None}, "must name each of 3 layers"),
        ({"attn_output_gate": False}, "with attn_output_gate"),
        ({"sliding_window": 8}, "sliding_window = 8"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"linear_num_key_heads": 3}, "gives 3 key heads of linear attention 2 value heads"),
        ({"tie_word_embeddings": True}, "differ in tie_word_embeddings"),
    ],
)
def test_odd_members_are_refused_in_a_line(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    save_whole(tmp_path, **changes)
    with pytest.raises(InputError, match=words):
        read_folder(tmp_path)


def test_a_tensor_by_two_names_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_whole(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.language_model.norm.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="one tensor by two names"):
        read_folder(tmp_path)
    assert not caplog.messages, "the refusal alone"


def test_workers_that_cannot_share_the_linear_heads(make_config: MakeConfig) -> None:
    """No pruning helps, so neither the budget nor the remedy asks for it."""
    shape = model_shape(stated(tiny_config("qwen3_5_text")))
    with pytest.raises(InputError, match="does not divide the heads of linear attention"):
        budget_for(make_config(keep=0.6, tensor_parallel=2), shape, torch.device("cpu"))
    with pytest.raises(InputError, match=r"linear attention of layer 0: .* \(1\)$"):
        check_tensor_parallel(shape, 2)


def test_what_vllm_wants_of_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = model_shape(stated(tiny_config("qwen3_5_text", linear_num_key_heads=2)))
    assert tensor_parallel_sizes(shape) == [1, 2]
    find_spec = "grasp_deploy.checkpoint.limits.find_spec"
    served = replace(shape, dtype="bfloat16")
    for found, tried in ((None, served), (object(), shape)):
        monkeypatch.setattr(find_spec, lambda _, found=found: found)
        with pytest.raises(InputError, match="wants torchvision"):
            check_vllm_runs(tried, "cpu")
    check_vllm_runs(served, "cpu")
