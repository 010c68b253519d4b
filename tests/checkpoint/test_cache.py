"""The cache: as wide as each layer, and from one token to the next the logits of the whole text."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from grasp_deploy.checkpoint.cache import CACHE, empty_cache, one_token_steps
from tests.tiny import VARIANTS, random_kept, slice_by_hand, tiny_model


@pytest.mark.parametrize(
    "variant", ["llama", "qwen3", "qwen3-5", "qwen2-sliding", "mistral-sliding"]
)
def test_steps_of_one_token_give_the_logits_of_the_whole_text(variant: str) -> None:
    model = tiny_model(**VARIANTS[variant])
    ids = torch.randint(256, (3, 24), generator=torch.Generator().manual_seed(0))
    cache, before = empty_cache(model, 3, 24), model.config._attn_implementation

    def logits() -> Iterator[torch.Tensor]:
        for step in ids.split(1, dim=1):
            yield model(input_ids=step, use_cache=True, **{CACHE: cache}).logits

    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        with one_token_steps(model):
            found = torch.cat(list(logits()), dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert model.config._attn_implementation == before


def test_the_cache_of_quantised_weights_is_plain() -> None:
    model: Any = tiny_model("llama", dtype=torch.bfloat16)
    projection = model.model.layers[0].self_attn.k_proj
    projection.weight = nn.Parameter(projection.weight.to(torch.int8), requires_grad=False)
    layer: Any = empty_cache(model, batch=2, tokens=9).layers[0]
    assert layer.dtype == torch.bfloat16


def test_the_cache_is_as_wide_as_each_layer_and_is_never_copied() -> None:
    dense = tiny_model("llama")
    model = slice_by_hand(dense, random_kept(dense.config))
    layers: list[Any] = list(empty_cache(model, batch=2, tokens=9).layers)
    heads = [layer.num_key_value_heads for layer in model.config.per_layer_config]
    assert len(set(heads)) > 1
    assert [layer.all_keys.shape for layer in layers] == [(2, k, 9, 32) for k in heads]
    new = torch.ones(2, heads[0], 4, 32)
    layers[0].update(new, 2 * new)
    keys, values = layers[0].update(3 * new[:, :, :1], new[:, :, :1])
    assert keys.data_ptr() == layers[0].all_keys.data_ptr()
    assert keys[0, 0, :, 0].tolist() == [1, 1, 1, 1, 3]
    assert values[0, 0, :, 0].tolist() == [2, 2, 2, 2, 1]
