"""The classes that travel with a checkpoint: narrow layers, caches, saving, loading anywhere."""

import ast
import copy
import inspect
import json
import pickle
import textwrap
from functools import partial
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedModel,
    pipeline,
)
from transformers.utils import logging

from grasp_deploy.checkpoint.format import configuration_grasp, modeling_grasp
from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.validate import read_folder
from tests.tiny import (
    STEMS,
    VARIANTS,
    logits_of,
    mask_by_hand,
    pruned_config,
    random_kept,
    save_tiny,
    slice_by_hand,
    stated,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
)

IDS = torch.randint(1, 256, (2, 20), generator=torch.Generator().manual_seed(7))
OTHERS_LAYERS = [(2, 96), (1, 63), (1, 30)]


def pruned_variant(name: str) -> PreTrainedModel:
    dense = tiny_model(**VARIANTS[name])
    return slice_by_hand(dense, random_kept(dense.config))


logits = partial(logits_of, ids=IDS)


def greedy(model: Any, **options: object) -> list[list[int]]:
    with_all = torch.ones_like(IDS)
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(IDS, attention_mask=with_all, **settings, **options).tolist()


@pytest.mark.parametrize("name", VARIANTS)
def test_sliced_model_equals_dense_model_with_masked_units(name: str) -> None:
    dense = tiny_model(**VARIANTS[name])
    kept = random_kept(dense.config)
    expected = logits(mask_by_hand(dense, kept))
    assert (logits(slice_by_hand(dense, kept)) - expected).abs().max() <= 1e-4
    assert (logits(dense) - expected).abs().max() > 1, "the removed units must matter here"


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "mistral-sliding", "ministral3", "qwen2-sliding", "qwen3", "gemma3-sliding"),
        "qwen3-5",
    ],
)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_with_a_cache_equals_generation_without(name: str, cache: str) -> None:
    model = pruned_variant(name)
    without = greedy(model, use_cache=False)
    assert greedy(model, cache_implementation=cache) == without
    assert len({token for row in without for token in row[IDS.shape[1] :]}) > 10


@pytest.mark.parametrize("family", STEMS)
def test_a_saved_config_holds_nothing_of_our_own(family: str, tmp_path: Path) -> None:
    sizes = {"num_experts": 96} if family == "qwen3_moe" else {}
    config = pruned_config(tiny_config(family, **sizes), OTHERS_LAYERS)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == f"grasp_{family}" and written["head_dim"] == 32
    assert (written["num_key_value_heads"], written["intermediate_size"]) == (2, 96)
    assert written["per_layer_config"]["1"] == {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts" if sizes else "intermediate_size": 63,
    }
    known = {*stated(AutoConfig.for_model(family)), "head_dim", "auto_map", "per_layer_config"}
    assert set(written) <= known


def test_older_keys_of_gemma_make_the_same_model(tmp_path: Path) -> None:
    """As its first checkpoints have them, whose embeddings are tied without saying so."""
    model = save_tiny(directory=tmp_path, **VARIANTS["gemma3-sliding-tied"])
    older = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2}
    gone = ("rope_parameters", "layer_types", "tie_word_embeddings", "_sliding_window_pattern")
    stated = json.loads((tmp_path / "config.json").read_text())
    kept = {key: value for key, value in stated.items() if key not in gone}
    (tmp_path / "config.json").write_text(json.dumps({**kept, **older}))
    assert torch.equal(logits(load(tmp_path, dtype="float32")), logits(model))
    assert model_shape(kept | older).windows.are_mixed
    assert not model_shape(kept | older | {"sliding_window_pattern": 4}).windows.are_mixed
    qwen = tiny_config("qwen2").to_dict() | {"use_sliding_window": True, "sliding_window": 64}
    qwen["num_hidden_layers"] = 30
    del qwen["layer_types"], qwen["max_window_layers"]  # which is 28 then
    assert model_shape(qwen).windows.are_mixed
    assert not model_shape(qwen | {"sliding_window": None}).windows.are_mixed


def test_a_model_of_many_layers_that_transformers_saved_is_read_and_used(tmp_path: Path) -> None:
    """From eleven layers on transformers writes their numbers as 00, 01 and so on."""
    dense = tiny_model("llama", num_hidden_layers=12)
    layers = [(1, 30), *10 * [(2, 96)], (1, 31)]
    model = slice_by_hand(dense, [(range(groups), range(channels)) for groups, channels in layers])
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert "00" in json.loads((tmp_path / "config.json").read_text())["per_layer_config"]
    found = read_folder(tmp_path).shape.layers
    assert [(each.num_key_value_heads, each.intermediate_size) for each in found] == layers
    short = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False}
    write = pipeline("text-generation", model=str(tmp_path), dtype="float32")
    texts = ["a bear", "the stone is older than the house", "b"]
    alone = [write(text, **short) for text in texts]
    tokenizer: Any = write.tokenizer
    tokenizer.pad_token, tokenizer.padding_side = "!", "left"
    assert write(texts, batch_size=3, **short) == alone


def test_global_sizes_are_the_dense_ones_and_reading_them_is_quiet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.enable_propagation()
    dense = tiny_config("qwen3")
    config = pruned_config(dense, OTHERS_LAYERS)
    for each in (config, copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert each.num_attention_heads == 4
        assert getattr(each, "num_key_value_heads", None) == 2
        assert each.intermediate_size == 96
        assert each.head_dim == 32
        sizes = [(c.num_key_value_heads, c.intermediate_size) for c in each.per_layer_config]
        assert sizes == OTHERS_LAYERS
    logging.disable_propagation()
    assert not caplog.records
    assert config.base_model_tp_plan == dense.base_model_tp_plan
    assert config.base_model_pp_plan == dense.base_model_pp_plan


def test_no_layer_is_built_wide_first(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    original = torch.nn.Linear.__init__

    def spy(self: torch.nn.Linear, rows: int, columns: int, *args: Any, **kwargs: Any) -> None:
        built.append((rows, columns))
        original(self, rows, columns, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Linear, "__init__", spy)
    config = pruned_config(tiny_config("llama"), [(1, 30), (1, 31), (1, 32)])
    AutoModelForCausalLM.from_config(config)
    assert len(built) == 3 * 7 + 1
    assert max(max(pair) for pair in built[:-1]) == 64, "the hidden size, and nothing wider"


def test_heads_that_cannot_share_evenly_are_refused() -> None:
    config: Any = pruned_config(tiny_config("llama", num_key_value_heads=4), OTHERS_LAYERS)
    config.per_layer_config = {"1": {"num_attention_heads": 3, "num_key_value_heads": 2}}
    with pytest.raises(AssertionError, match="layer 1: 3 query heads cannot share 2 KV heads"):
        AutoModelForCausalLM.from_config(config)


def test_a_forward_that_is_compiled_again_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As llm-compressor does to calibrate GPTQ layer by layer."""
    model = pruned_variant("llama")
    before = logits(model)
    names: dict[str, Any] = dict(vars(modeling_grasp))
    exec(textwrap.dedent(inspect.getsource(modeling_grasp.NarrowLayersMixin.forward)), names)
    monkeypatch.setattr(model.model, "forward", MethodType(names["forward"], model.model))
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("module", [configuration_grasp, modeling_grasp])
def test_remote_code_imports_only_torch_transformers_and_itself(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add("." * node.level + (node.module or "").split(".")[0])
    assert roots <= {"typing", "torch", "transformers", ".configuration_grasp"}
