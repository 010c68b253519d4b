"""What deployments of known models take, each figure derived by hand, and the ways to shrink it."""

from typing import Any

import pytest

from grasp_deploy.checkpoint.footprint import Load, Room
from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.fit.offers import offers

GIB = 2**30
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}


def config(family: dict[str, Any], *sizes: int, **others: Any) -> dict[str, Any]:
    """A config.json with layers, hidden size, FFN channels, query heads, KV heads, vocabulary."""
    heads = ("num_attention_heads", "num_key_value_heads")
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", *heads, "vocab_size")
    return {**family, **dict(zip(names, sizes, strict=True)), "rms_norm_eps": 1e-6, **others}


# Matrices of a layer, written out: (rows, columns) of q, k, v, o, gate, up and down.
def matrices(d: int, heads: int, kv: int, head: int, ffn: int) -> list[tuple[int, int]]:
    attention = [(heads * head, d), (kv * head, d), (kv * head, d), (d, heads * head)]
    return [*attention, (ffn, d), (ffn, d), (d, ffn)]


CASES = {  # config, GiB, sequences, context; matrices of a layer; other parameters; KV heads x D
    "Llama-3.1-8B": (
        config(LLAMA, 32, 4096, 14336, 32, 8, 128256),
        (24, 32, 8192),
        matrices(4096, 32, 8, 128, 14336),
        2 * 128256 * 4096 + 65 * 4096,  # embeddings, head, 65 norms
        8 * 128,
    ),
    "Qwen3-0.6B": (
        config(QWEN3, 28, 1024, 3072, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
        (8, 8, 4096),
        matrices(1024, 16, 8, 128, 3072),
        151936 * 1024 + 57 * 1024 + 28 * 2 * 128,
        8 * 128,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_figure_by_hand(name: str) -> None:
    stated, (memory, sequences, context), linears, others, kv_width = CASES[name]
    layers, d = stated["num_hidden_layers"], stated["hidden_size"]
    room, load = Room(memory * GIB, 0.9, GIB), Load(sequences, context)
    rows = {offer.name: offer for offer in offers(model_shape(stated), load, room)}

    tokens = (sequences * context // 16 + 1) * 16  # blocks of 16 tokens, and one more
    cache = tokens * layers * 2 * kv_width * 2  # keys and values of two bytes
    step = 2048 * (2 * d + 3 * stated["intermediate_size"]) * 2  # the MLP's moment is the worst
    plain = 2 * (layers * sum(r * c for r, c in linears) + others)
    eight = layers * sum(r * c + 2 * r for r, c in linears) + 2 * others
    four = layers * sum(r * c // 2 + 2 * r * (c // 128) + 16 for r, c in linears) + 2 * others
    usable = memory * GIB * 9 // 10
    expected = {
        "as it is": (plain, cache),
        "FP8 weights alone": (eight, cache),
        "4-bit weights alone": (four, cache),
        "FP8 KV cache alone": (plain, cache // 2),
        "FP8 weights and KV cache": (eight, cache // 2),
        "4-bit weights, FP8 KV cache": (four, cache // 2),
    }
    for label, (weights, kv) in expected.items():
        parts = rows.pop(label)
        assert (parts.memory.weight_bytes, parts.memory.kv_bytes) == (weights, kv), label
        assert (parts.memory.activation_bytes, parts.memory.overhead_bytes) == (step, GIB)
        assert parts.fits == (weights + kv + step + GIB <= usable), label
    assert len(rows) == (0 if name == "Qwen3-0.6B" else 3)
    of_bits = {None: (plain, cache), 8: (eight, cache // 2), 4: (four, cache // 2)}
    for offer in rows.values():  # they fill the room to the byte
        assert offer.fits and offer.memory.total_bytes == usable and offer.keep
        weights, kv = of_bits[offer.bits]
        prunable = layers * sum(r * c for r, c in linears) * (offer.bits or 16) // 8 + kv
        if offer.bits:  # o and down keep their rows' scales, of 8 bits one each
            rows_of = [(r, c) for place, (r, c) in enumerate(linears) if place not in (3, 6)]
            prunable += layers * 2 * sum(r for r, _ in rows_of) * (offer.bits == 8)
            prunable += layers * 2 * sum(r * (c // 128) for r, c in linears) * (offer.bits == 4)
        left = usable - step - GIB - (weights + kv - prunable)
        assert offer.keep == pytest.approx(left / prunable, rel=1e-12), offer.name
        shown = float(offer.name.split()[2])
        assert 100 * offer.keep - 0.1 < shown <= 100 * offer.keep, "a budget of this share fits"


def test_sequences_that_fit_are_whole_blocks_of_what_is_left() -> None:
    """Of blocks of 16 tokens, one is vLLM's own; a sequence of 20 tokens takes two."""
    shape, load = model_shape(CASES["Qwen3-0.6B"][0]), Load(4, 20)
    used = offers(shape, load, Room(8 * GIB, 1.0, GIB))[0].memory
    block = used.kv_bytes // 9
    for more, expected in ((-1, 3), (0, 4), (2 * block - 1, 4), (2 * block, 5)):
        room = Room(used.total_bytes + more, 1.0, GIB)
        assert offers(shape, load, room)[0].sequences == expected, more


def test_where_some_layers_see_a_window_the_cache_stays() -> None:
    gemma = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    shape = model_shape(config(gemma, 34, 2560, 10240, 8, 4, 262208, dtype="bfloat16"))
    rows = {o.name: o for o in offers(shape, Load(8, 4096), Room(10 * GIB, 0.9, GIB))}
    dense = rows["as it is"]
    (pruned,) = [o for name, o in rows.items() if name.startswith("pruned") and "," not in name]
    assert pruned.memory.kv_bytes == dense.memory.kv_bytes
    lost = dense.memory.weight_bytes - pruned.memory.weight_bytes
    channels = 34 * 3 * 2560 * 10240 * 2
    assert pruned.keep == pytest.approx(1 - lost / channels)


def test_a_window_in_all_layers_spares_a_model_its_pruning() -> None:
    """Mistral-7B-v0.1: 64 GiB of cache for 16 full contexts, and 16 with a window of 4,096."""
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    stated = config(mistral, 32, 4096, 14336, 32, 8, 32000, dtype="bfloat16", sliding_window=4096)
    of_all, of_window = (
        offers(model_shape(stated | more), Load(16, 32768), Room(36 * GIB, 0.9, GIB))
        for more in ({"sliding_window": None}, {})
    )
    assert of_all[0].memory.kv_bytes > 64 * GIB
    assert 16 * GIB < of_window[0].memory.kv_bytes < 16.2 * GIB
    assert of_window[0].fits and of_window[0].sequences == 17
    assert not any(row.keep for row in of_window)


def test_experts_are_not_offered_in_bits_that_quantize_refuses() -> None:
    moe = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 128}
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    stated = config(moe, 48, 2048, 6144, 32, 4, 151936, dtype="bfloat16", **experts)
    rows = offers(model_shape(stated), Load(8, 4096), Room(48 * GIB, 0.9, GIB))
    assert [row.name.partition(" to ")[0] for row in rows] == [
        *("as it is", "FP8 KV cache alone", "pruned")
    ]


@pytest.mark.parametrize(
    ("channels", "multiples", "groups"),
    [
        (14336, (128, 1), [128, 128, 128]),
        (14336, (64, 1), [128, 128, 64]),
        (14336, (8, 1), [128, 128]),
        (14368, (32, 1), [32, 32, 32]),
        (14344, (32, 1), [32]),  # no multiple of 32 itself
        (14344, (8, 1), []),
    ],
)
def test_four_bits_are_offered_where_quantize_finds_a_group(
    channels: int, multiples: tuple[int, int], groups: list[int]
) -> None:
    """Of the dense model's columns, and of any that a pruned one may keep."""
    shape = model_shape({**CASES["Llama-3.1-8B"][0], "intermediate_size": channels})
    rows = offers(shape, Load(32, 8192), Room(24 * GIB, 0.9, GIB), multiples=multiples)
    assert [row.group_columns for row in rows if row.bits == 4] == groups
    assert sum(row.bits == 8 for row in rows) == 3
