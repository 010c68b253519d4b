"""The norms of a decoder layer, listed once for the maths and for the names of tensors.

A file of its own: names are read where torch is not imported, since that takes a second.
"""

from typing import NamedTuple


class Norms(NamedTuple):
    """Names within a decoder layer, each pair for attention and for the MLP.

    `behind` norms take what attention and the MLP return, before it is added to the hidden states.
    A norm multiplies by its weight plus `offset`.
    """

    before: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    behind: tuple[str, ...] = ()
    offset: float = 0.0

    def in_order(self, layers: int) -> list[str]:
        """`(2L + 1,)` names of the norms that hand hidden states on, as the forward calls them."""
        of_layers = [f"model.layers.{i}.{name}" for i in range(layers) for name in self.before]
        return [*of_layers, "model.norm"]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.before, *self.behind)


SANDWICH = Norms(
    ("input_layernorm", "pre_feedforward_layernorm"),
    ("post_attention_layernorm", "post_feedforward_layernorm"),
    offset=1.0,
)


def norms_of(model_type: str) -> Norms:
    """The norms of a family, dense or pruned, by the `model_type` of config.json."""
    known = {"gemma3_text": SANDWICH, "qwen3_5_text": Norms(offset=1.0)}
    return known.get(model_type.removeprefix("grasp_"), Norms())
