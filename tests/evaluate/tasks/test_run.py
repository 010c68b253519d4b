"""The same items through transformers and through a real vLLM: the same accuracies."""

from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.evaluate.settings import TaskSettings
from grasp_deploy.evaluate.tasks.run import bench_tasks
from grasp_deploy.evaluate.tasks.vllm import engine_arguments
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items
from tests.installed import pretend
from tests.tiny import save_tiny


def run(model: Path, files: list[Path], engine: Any) -> list[dict[str, Any]]:
    settings = TaskSettings(
        task_files=tuple(files),
        engine=engine,
        limit=4,
        dtype="float32",  # bfloat16 differs in the second digit
        enforce_eager=engine == "vllm",
    )
    cells: list[dict[str, Any]] = bench_tasks(bench_models([str(model)]), settings, [])["cells"]
    return cells


@needs_lm_eval
@pytest.mark.vllm
@pytest.mark.slow
def test_both_engines_agree_on_every_item(demo_checkpoint: Path, tmp_path: Path) -> None:
    files = list(write_items(tmp_path).values())
    ran = (run(demo_checkpoint, files, engine) for engine in ("transformers", "vllm"))
    for one, other in zip(*ran, strict=True):
        for item, served in zip(one["items"], other["items"], strict=True):
            scores = item.pop("loglikelihoods")
            assert served.pop("loglikelihoods") == pytest.approx(scores, abs=1e-3)
            assert item == served
        for name in ("prompts_sha256", "accuracy", "standard_error"):
            assert one[name] == other[name]


@needs_lm_eval
def test_every_tokenizer_is_looked_at_before_a_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("grasp_deploy.evaluate.tasks.run.load")
    save_tiny("llama", tmp_path / "narrow", vocab_size=128)
    save_tiny("llama", tmp_path / "wide")
    models = bench_models([str(tmp_path / name) for name in ("wide", "narrow")])
    settings = TaskSettings(task_files=(write_items(tmp_path)["query"],))
    with pytest.raises(InputError, match="of narrow has 256 tokens and the model only 128"):
        bench_tasks(models, settings, [])


def test_what_vllm_is_told(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model,) = bench_models([str(demo_model)])
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    told = engine_arguments(model, TaskSettings(max_tokens=512))
    assert told["kv_cache_memory_bytes"] == (4 * 4 + 1) * 128 * model.shape.kv_bytes_per_token()
    assert "gpu_memory_utilization" not in told and "max_num_seqs" not in told
    pretend(monkeypatch, lambda _: "0.32.0")
    told = engine_arguments(model, TaskSettings(max_tokens=512, batch_size=3))
    assert (told["gpu_memory_utilization"], told["max_num_seqs"]) == (0.8, 3)
