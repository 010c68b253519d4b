"""GGUF files: llama.cpp itself reads them, and its tokens and probabilities are transformers'."""

import json
import math
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.write.gguf_file import write_gguf
from grasp_deploy.checkpoint.write.gguf_tokenizer import RULES, WHOLE
from grasp_deploy.data.tokenizing import SAMPLE
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import lock_of, locked
from tests.answering import posted
from tests.checkpoint.write.tokenizers_by_rule import (
    of_sentencepiece,
    of_words,
    trained,
    with_a_word,
)
from tests.cli.command import assert_refused, edit_json, grasp_deploy, succeeded
from tests.tiny import VARIANTS, logits_of, random_kept, save_tiny, slice_by_hand

xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp, which is llama.cpp, is absent")
pytest.importorskip("gguf", reason="the package gguf is absent")
PROMPT = list(range(60, 100))
HELD = [
    name
    for name in VARIANTS
    if name.startswith(("llama", "mistral", "qwen2", "qwen3-tied")) and "sliding" not in name
]


def llama_cpp(path: Path) -> Any:
    """A server of a file, in float32 wherever llama.cpp lets one choose."""
    wanted = xllamacpp.CommonParams()
    wanted.model.path, wanted.n_ctx, wanted.n_parallel, wanted.warmup = str(path), 256, 1, False
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1
    wanted.cache_type_k = wanted.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    wanted.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    wanted.verbosity = -1
    return xllamacpp.Server(wanted)


def worst_difference(folder: Path, path: Path) -> float:
    """The largest one among five log-probabilities of each of 24 greedy tokens."""
    of_parts = [i for text, i in load_tokenizer(folder).get_vocab().items() if text > "~"]
    asked = {
        **{"prompt": PROMPT, "n_predict": 24, "temperature": 0, "n_probs": 5, "ignore_eos": True},
        # Tokens that are no whole character: the server says nothing of them until it is whole.
        "logit_bias": [[token, False] for token in of_parts],
    }
    server = llama_cpp(path)  # while this is held, it answers
    said = posted(f"{server.listening_address}/completion", asked)["completion_probabilities"]
    ids = torch.tensor([PROMPT + [each["id"] for each in said]])
    logits = logits_of(load(folder, device="cpu", dtype="float32"), ids)[0]
    rows = logits[len(PROMPT) - 1 : -1].log_softmax(-1)
    assert len(said) == len(rows) == 24
    return max(
        abs(each["logprob"] - float(row[each["id"]]))
        for row, token in zip(rows, said, strict=True)
        for each in token["top_logprobs"]
    )


def save_pruned(variant: str, folder: Path) -> Path:
    dense = save_tiny(directory=folder, **VARIANTS[variant])
    pruned = slice_by_hand(dense, random_kept(dense.config))
    pruned.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("variant", HELD)
def test_probabilities_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    folder = save_pruned(variant, tmp_path / "model")
    write_gguf(folder, tmp_path / "model.gguf", "f32")
    assert worst_difference(folder, tmp_path / "model.gguf") < 0.002


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ],
)
def test_positions_are_spread_alike(rope: dict[str, Any], tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model", rope_parameters={"rope_theta": 10000.0, **rope})
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "f32")
    assert worst_difference(tmp_path / "model", tmp_path / "model.gguf") < 0.002


@pytest.mark.parametrize(
    ("kind", "share", "nats"),
    [
        ("f16", 2**-11, 0.1),
        ("bf16", 2**-8, 0.5),
        ("q8_0", 1 / 225, 2),
        ("q4_0", 1 / 7.9, 10),  # random weights exaggerate
    ],
)
def test_narrower_types_are_as_near_as_their_bits_allow(
    kind: str, share: float, nats: float, tmp_path: Path
) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    folder = save_pruned("qwen3-tied", tmp_path / "model")
    succeeded("gguf", folder, "-o", tmp_path / "a.gguf", "--type", kind)
    held = {each.name: each for each in GGUFReader(tmp_path / "a.gguf").tensors}
    types = {name: each.tensor_type.name for name, each in held.items()}
    assert types["blk.0.attn_qkv.weight"] == kind.upper()
    assert types["token_embd.weight"] == ("Q8_0" if kind == "q4_0" else kind.upper())
    assert types["blk.2.ffn_down.weight"] == ("BF16" if kind == "bf16" else "F16")  # odd rows
    assert types["output_norm.weight"] == "F32"
    packed = held["blk.0.ffn_down.weight"]
    exact = load(folder, device="cpu").model.layers[0].mlp.down_proj.weight.detach()
    found = torch.tensor(dequantize(packed.data, packed.tensor_type))
    blocks = exact.unflatten(1, (-1, 32)).abs()
    most = blocks.amax(-1, keepdim=True) if "q" in kind else blocks
    assert bool(((found - exact).abs().view_as(blocks) <= most * share + 2**-24).all())
    assert worst_difference(folder, tmp_path / "a.gguf") < nats


@pytest.mark.parametrize("rule", [*RULES, "sentencepiece"])
def test_text_gives_the_same_tokens(rule: str, tmp_path: Path) -> None:
    by_words = rule != "sentencepiece"
    made = with_a_word(of_words(rule), RULES[rule] in WHOLE) if by_words else of_sentencepiece()
    specials = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **specials)
    save_tiny("llama", tmp_path / "model", vocab_size=len(tokenizer) + 3)
    tokenizer.chat_template = "{{ messages[0]['content'] }} {{ bos_token }}"
    tokenizer.save_pretrained(tmp_path / "model")
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "f32")
    server = llama_cpp(tmp_path / "model.gguf")  # while this is held, it answers
    for text in (
        SAMPLE,
        "1234567",
        "a xylophone",
        "a</s>b <s>",
        "I'm  SURE\n\n\n they'Ll  \t go\u00a0on",
    ):
        asked = {"content": text, "add_special": True, "parse_special": True}
        said = posted(f"{server.listening_address}/tokenize", asked)
        assert said["tokens"] == tokenizer(text)["input_ids"]
    asked = {"messages": [{"role": "user", "content": "Hello"}]}
    chat = posted(f"{server.listening_address}/apply-template", asked)
    assert chat["prompt"] == "Hello <s>"


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("qwen3", "lm_head"),
        ("qwen3-biases", "biases"),
        ("mistral-sliding", "sliding window"),
        ("granite", "what Granite multiplies by"),
        ("qwen3-5", "linear attention"),
        ("gemma3-full", "a sliding window"),
        ("ministral3", "queries scaled by position"),
    ],
)
def test_what_llama_cpp_cannot_hold_is_named(variant: str, words: str, tmp_path: Path) -> None:
    folder = save_pruned(variant, tmp_path / "model")
    ended = grasp_deploy("gguf", folder, "-o", tmp_path / "a.gguf")
    assert_refused(ended, words, "grasp-deploy serve")
    assert not [*tmp_path.glob("*.gguf*")]


def test_positions_that_it_cannot_spread_are_named(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    save_tiny("qwen3", tmp_path / "model", tie_word_embeddings=True, rope_parameters=rope)
    assert_refused(grasp_deploy("gguf", tmp_path / "model", "-o", tmp_path / "a"), "linear")


def changed(**parts: Any) -> Tokenizer:
    """A tokenizer of which some parts, as tokenizer.json has them, are others."""
    return Tokenizer.from_str(json.dumps({**json.loads(of_words("").to_str()), **parts}))


def divided_at_spaces() -> Tokenizer:
    """A tokenizer as those of LLaMA 2, but its token of two spaces is in no text."""
    rules = json.loads(of_sentencepiece().to_str())
    rules["model"]["vocab"]["\u2581\u2581"] = len(rules["model"]["vocab"])
    rules["model"]["merges"].append(["\u2581", "\u2581"])
    made = Tokenizer.from_str(json.dumps(rules))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    return made


ADDED = {"id": 599, "content": "<x>", "special": True, "normalized": False}
PLAIN = {"lstrip": False, "rstrip": False, "single_word": False}


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (trained(pre_tokenizers.ByteLevel(True, use_regex=False)), "qwen2"),
        (trained(pre_tokenizers.Sequence([])), "qwen2"),
        (Tokenizer(models.BPE({"a": 0}, [])), "not BPE with merges"),
        (Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), "WordLevel"),
        (with_a_word(of_words(""), True), "words that are tokens"),
        (with_a_word(of_words([*RULES][2]), False), "words that are tokens"),
        (divided_at_spaces(), "divides text at spaces"),
        (changed(normalizer={"type": "Lowercase"}), "changes text"),
        (changed(added_tokens=[{**ADDED, **PLAIN, "lstrip": True}]), "the space beside them"),
        (
            changed(added_tokens=[{**ADDED, **PLAIN, "content": text} for text in ("<x>", "<y>")]),
            "beyond the model's 601",
        ),
    ],
)
def test_a_tokenizer_that_it_does_not_have_is_refused(
    tokenizer: Tokenizer, words: str, tmp_path: Path
) -> None:
    save_tiny("llama", tmp_path / "model", vocab_size=601)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    assert_refused(grasp_deploy("gguf", tmp_path / "model", "-o", tmp_path / "a"), words)


def test_a_tokenizer_says_what_ends_a_text_or_the_model_does(tmp_path: Path) -> None:
    from gguf import GGUFReader

    command = ("gguf", tmp_path / "model", "-o", tmp_path / "a.gguf", "--overwrite")
    save_tiny("llama", tmp_path / "model", vocab_size=600, eos_token_id=[7, 8])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_words(""))
    tokenizer.save_pretrained(tmp_path / "model")
    assert grasp_deploy(*command).code == 0
    field = GGUFReader(tmp_path / "a.gguf").fields["tokenizer.ggml.eos_token_id"]
    assert field.contents() == 7
    edit_json(tmp_path / "model/config.json", eos_token_id=None)
    assert_refused(grasp_deploy(*command), "no token that ends a text")
    for beyond in (-1, 600, [2**40]):
        edit_json(tmp_path / "model/config.json", eos_token_id=beyond)
        assert_refused(grasp_deploy(*command), str(beyond).strip("[]"), "eos")


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (1e6, "q8_0", ["float16", "--type bf16 or f32"]),
        (math.nan, "q8_0", ["fetch the model again"]),
        (math.nan, "bf16", ["numbers that are not finite; fetch the model again"]),
    ],
)
def test_numbers_that_a_type_cannot_hold_are_named(
    value: float, kind: str, words: list[str], tmp_path: Path
) -> None:
    model = save_tiny("llama", tmp_path / "model")
    model.model.layers[1].mlp.up_proj.weight.data[3, 0] = value
    model.save_pretrained(tmp_path / "model")
    ended = grasp_deploy("gguf", tmp_path / "model", "--type", kind, "-o", tmp_path / "a.gguf")
    assert_refused(ended, "blk.1.ffn_up.weight", *words)  # its name in the file


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    with locked(lock_of(tmp_path / "a"), tmp_path / "a"):
        refused = grasp_deploy("gguf", tmp_path / "model", "-o", tmp_path / "a")
    assert_refused(refused, "another run is at work")


def test_an_output_is_replaced_only_if_asked_and_only_a_gguf(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    (tmp_path / "notes.gguf").write_text("mine")
    command = ("gguf", tmp_path / "model", "-o")
    assert_refused(grasp_deploy(*command, tmp_path / "notes.gguf", "--overwrite"), "exists")
    assert (tmp_path / "notes.gguf").read_text() == "mine"
    assert grasp_deploy(*command, tmp_path / "a.gguf").code == 0
    assert_refused(grasp_deploy(*command, tmp_path / "a.gguf"), "--overwrite")
    assert grasp_deploy(*command, tmp_path / "a.gguf", "--overwrite").code == 0


def test_a_file_that_may_not_grow_leaves_nothing(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        refused = grasp_deploy("gguf", tmp_path / "model", "-o", tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_refused(refused, "cannot write", "make room")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_without_the_package_gguf_a_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"grasp-deploy\[gguf\]"):
        write_gguf(tmp_path, tmp_path / "a", "f16")
