"""Attention from one token: the logits of the whole text, whatever the heads and the window."""

from collections.abc import Iterator

import pytest
import torch

from grasp_deploy.checkpoint.cache import CACHE, empty_cache, one_token_steps
from tests.tiny import VARIANTS, tiny_model


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
