"""vLLM serves the model that transformers evaluates, whatever lies beside its weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grasp_deploy.checkpoint.cpu import has_avx512
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.verify_answers import greedy_tokens as greedy_with_transformers
from grasp_deploy.checkpoint.write.quantize import SCHEMES, quantize
from grasp_deploy.data.tokenizing import JOIN, tokens
from grasp_deploy.demo.text import documents, split
from grasp_deploy.engine.offline import greedy_tokens
from grasp_deploy.engine.serve import running_server
from grasp_deploy.errors import InputError
from tests.answering import posted
from tests.cli.command import edit_json
from tests.tiny import logits_of, save_tiny

pytestmark = pytest.mark.vllm
PROMPTS = torch.randint(1, 256, (4, 16), generator=torch.Generator().manual_seed(5))
NEW_TOKENS = 24


def full_snapshot(folder: Path) -> None:
    """Mistral's format beside the usual one, of another model; and what makes vLLM embed text."""
    model = save_tiny("mistral", folder, sliding_window=None)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="30KB")
    stray = {"norm.weight": torch.zeros(64), "lm_head.weight": torch.zeros(256, 64)}
    save_file(stray, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps({"dim": 64, "n_layers": 1, "vocab_size": 256}))
    pooling = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
    (folder / "modules.json").write_text(json.dumps([pooling]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')


def other_files_and_kernels(folder: Path) -> None:
    save_tiny("qwen2", folder, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for name in ("model.gguf", "pytorch_model.bin", "model.pt", "original"):
        (folder / name).mkdir() if name == "original" else (folder / name).write_bytes(b"\x80")
    save_file({"model.norm.weight": torch.zeros(128)}, folder / "original" / "model.safetensors")
    edit_json(folder / "config.json", dtype="float16", attn_implementation="somebody/kernel")


def test_a_full_snapshot_is_served_as_it_is_evaluated(tmp_path: Path) -> None:
    full_snapshot(tmp_path / "model")
    model = load(tmp_path / "model", device="cpu")
    expected = greedy_with_transformers(model, PROMPTS, NEW_TOKENS)
    flags = ["--max-model-len", "64", "--enforce-eager", "--kv-cache-memory-bytes", "67108864"]
    with running_server(tmp_path / "model", flags, tmp_path / "log") as url:
        request = {
            "prompt": PROMPTS.tolist(),
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        choices = posted(f"{url}/v1/completions", request)["choices"]
    assert [choice["token_ids"] for choice in choices] == expected
    assert "dtype=torch.float32" in (tmp_path / "log").read_text()


@pytest.mark.all
def test_other_files_and_kernels_change_nothing(tmp_path: Path) -> None:
    other_files_and_kernels(tmp_path)
    check_same_tokens(tmp_path)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_checkpoint_is_served_as_it_is_evaluated(
    scheme: str, demo_checkpoint: Path, tmp_path: Path
) -> None:
    """The next token, wherever rounding of activations cannot decide it."""
    folder = tmp_path / scheme
    quantize(demo_checkpoint, scheme, folder)
    if scheme == "w4a16" and not has_avx512():  # of which vLLM's CPU build makes a traceback
        with pytest.raises(InputError, match=r"4-bit weights only with AVX-512"):
            greedy_tokens(folder, [[1]], 1)
        return
    held_out = JOIN.join(split(documents())[1])
    ids = torch.tensor(tokens(load_tokenizer(folder), held_out)[: 32 * 24]).view(32, 24)
    logits = logits_of(load(folder, device="cpu"), ids)[:, -1].float()
    first, second = logits.topk(2).values.unbind(1)
    is_sure = first - second > 0.5
    served = torch.tensor(greedy_tokens(folder, ids.tolist(), 1)).flatten()
    assert int(is_sure.sum()) > 10
    assert torch.equal(served[is_sure], logits.argmax(1)[is_sure])


def check_same_tokens(folder: Path) -> None:
    expected = greedy_with_transformers(load(folder, device="cpu"), PROMPTS, NEW_TOKENS)
    assert greedy_tokens(folder, PROMPTS.tolist(), NEW_TOKENS) == expected
