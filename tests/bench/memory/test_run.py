"""`bench memory`: what is measured is what was predicted, and what is planted is seen."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.bench import limits
from grasp_deploy.bench.memory import child as memory_child
from grasp_deploy.bench.memory.measure import prefill_memory
from grasp_deploy.bench.memory.prefill import predict_prefill
from grasp_deploy.bench.memory.run import bench_memory
from grasp_deploy.bench.memory.settings import MemorySettings
from grasp_deploy.bench.memory.table import memory_table
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from tests.bench.memory.ballast_child import BALLAST_BYTES
from tests.bench.records import lines_of, typed
from tests.cli.command import assert_refused, grasp_deploy
from tests.tiny import save_tiny, tiny_config

ROOT = Path(__file__).parents[3]
BATCH, TOKENS = 4, 128
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8}
# The C library and the kernels' own scratch memory: about a MiB, whatever the model.
SLACK_BYTES = 2 * 2**20


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the tests, and the package where it is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two config files; the second model has twice the KV heads of the first."""
    folder = tmp_path_factory.mktemp("configs")
    paths = []
    for kv_heads in (2, 4):
        config = tiny_config("llama", **SIZES, num_key_value_heads=kv_heads, dtype="bfloat16")
        paths.append(folder / f"kv-{kv_heads}.json")
        config.to_json_file(paths[-1])
    return paths


@pytest.fixture(scope="module")
def record(configs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command measures on both."""
    output = tmp_path_factory.mktemp("records") / "new" / "memory.json"
    options = ("--random-weights", "--prompt-tokens", TOKENS, "--batch", BATCH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        ended = grasp_deploy(
            "bench", "memory", *configs, *options, "--device", "cpu", "--json", "-o", output
        )
    assert ended.code == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    assert document == json.loads(output.read_text())
    assert "measuring prefills 2/2" in ended.stderr
    return document


def test_the_record_says_what_was_done(record: dict[str, Any]) -> None:
    assert (record["schema_version"], record["benchmark"]) == (1, "memory")
    assert record["settings"] == {
        "prompt_tokens": [TOKENS],
        "batch": BATCH,
        "repetitions": 3,
        "device": "cpu",
        "dtype": "auto",
        "seed": 0,
        "random_weights": True,
    }
    assert [model["name"] for model in record["models"]] == ["kv-2", "kv-4"]
    for cell in record["cells"]:
        assert (cell["prompt_tokens"], cell["batch"]) == (TOKENS, BATCH)
        assert len(cell["samples"]) == 3
        peaks = sorted(sample["peak_bytes"] for sample in cell["samples"])
        assert cell["measured"]["peak_bytes"] == peaks[1]
        for sizes in (cell["predicted"], cell["measured"]):
            rest = sizes["peak_bytes"] - sizes["weight_bytes"] - sizes["kv_bytes"]
            assert sizes["other_bytes"] == rest > 0


def test_what_is_measured_is_what_was_predicted(record: dict[str, Any]) -> None:
    for cell in record["cells"]:
        measured, predicted = cell["measured"], cell["predicted"]
        for key in ("weight_bytes", "kv_bytes"):
            assert measured[key] == pytest.approx(predicted[key], rel=0.005)
        surplus = measured["peak_bytes"] - predicted["peak_bytes"]
        assert -SLACK_BYTES / 8 < surplus < SLACK_BYTES


def test_twice_the_kv_heads_show_twice_the_kv_bytes(record: dict[str, Any]) -> None:
    few, many = record["cells"]
    assert many["measured"]["kv_bytes"] == 2 * few["measured"]["kv_bytes"]
    growth = many["measured"]["peak_bytes"] - few["measured"]["peak_bytes"]
    expected = many["predicted"]["peak_bytes"] - few["predicted"]["peak_bytes"]
    assert growth == pytest.approx(expected, abs=SLACK_BYTES / 2)


def test_real_weights_are_measured_and_a_planted_allocation_shows_in_the_peak(
    tmp_path: Path,
) -> None:
    save_tiny("qwen3", tmp_path / "model", dtype=torch.bfloat16)
    (model,) = bench_models([str(tmp_path / "model")])
    (sample,) = prefill_memory(
        model.path,
        batch=2,
        prompt_tokens=64,
        dtype=model.shape.dtype,
        module="tests.bench.memory.ballast_child",
    )
    predicted = predict_prefill(model.shape, 2, 64)
    stored = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert sample.weight_bytes == predicted.weight_bytes
    assert sample.weight_bytes == pytest.approx(stored, rel=0.1)
    assert sample.kv_bytes == predicted.kv_bytes
    planted = sample.peak_bytes - predicted.peak_bytes
    # On processors with AMX the kernels for bfloat16 are compiled as they are first needed.
    assert planted == pytest.approx(BALLAST_BYTES, abs=BALLAST_BYTES / 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_measures_what_was_predicted(configs: list[Path]) -> None:
    settings = MemorySettings((1024,), BATCH, repetitions=1, device="cuda")
    models = bench_models([str(path) for path in configs], random_weights=True)
    for cell in bench_memory(models, settings, []).cells:
        measured, predicted = cell.measured, cell.predicted
        assert measured.weight_bytes == pytest.approx(predicted.weight_bytes, rel=0.005)
        assert measured.kv_bytes == pytest.approx(predicted.kv_bytes, rel=0.005)
        assert 0 <= measured.peak_bytes - predicted.peak_bytes < 64 * 2**20
        assert measured.reserved_bytes and measured.device_bytes
        assert measured.peak_bytes <= measured.reserved_bytes < measured.device_bytes


def test_the_table_fits_and_shows_each_figure(record: dict[str, Any]) -> None:
    text = "\n".join(lines_of(memory_table(typed(record))))
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    for cell in record["cells"]:
        for sizes in (cell["predicted"], cell["measured"]):
            for size in sizes.values():
                assert f"{size / 2**20:,.1f}" in text
    assert "+100.0%" in text  # the KV cache of the second model


def write_model(folder: Path, content: dict[str, Any] | None = None) -> Path:
    """A folder with a config.json and no weights."""
    config = tiny_config("llama").to_dict() if content is None else content
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prompt-tokens", "0"), ("--prompt-tokens '0'", "positive whole number")),
        (("--prompt-tokens", "8,x"), ("'x'", "write it like 1,2,4")),
        (("--prompt-tokens", ""), ("--prompt-tokens ''",)),
        (("--prompt-tokens", "8,8"), ("names a number twice",)),
        (("--dtype", "int8"), ("--dtype int8 is unknown",)),
        (("--device", "tpu"), ("--device tpu",)),
        (("--device", "cuda:99"), ("--device cuda:99", "GPUs here")),
        (("--output", "."), ("--output . is a folder",)),
        (("--output", "text.txt"), ("text.txt exists and is no record",)),
        (("--output", "text.txt/record.json"), ("cannot be written",)),
    ],
)
def test_bad_options_are_refused(
    options: tuple[str, ...],
    words: tuple[str, ...],
    configs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("mine")
    assert_refused(
        grasp_deploy("bench", "memory", configs[0], "--random-weights", *options), *words
    )
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_bad_models_are_refused(configs: list[Path], tmp_path: Path) -> None:
    assert_refused(
        grasp_deploy("bench", "memory", configs[0]),
        "is a file and holds no weights",
        "--random-weights",
    )
    assert_refused(grasp_deploy("bench", "memory", tmp_path / "absent"), "no such folder")
    absent = tmp_path / "absent.json"
    assert_refused(grasp_deploy("bench", "memory", absent, "--random-weights"), "there is no file")
    bare = write_model(tmp_path / "bare")
    assert_refused(grasp_deploy("bench", "memory", bare), "holds no weights")
    gpt = write_model(tmp_path / "gpt", {"architectures": ["GPT2LMHeadModel"]})
    assert_refused(
        grasp_deploy("bench", "memory", gpt, "--random-weights"), "GPT2LMHeadModel", "not supported"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert_refused(
        grasp_deploy("bench", "memory", empty, "--random-weights"), "holds no config.json"
    )


def test_what_does_not_fit_is_refused_before_it_begins(
    configs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "available_memory_bytes", lambda: 2**20)
    bench = ("bench", "memory", configs[0], "--random-weights", "--device", "cpu")
    ended = grasp_deploy(*bench, "--prompt-tokens", "256")
    assert_refused(ended, "4 prompts of 256 tokens of kv-2 take", "0.0 GiB are free")
    ended = grasp_deploy(*bench, "--prompt-tokens", "256,1024")
    assert_refused(ended, "1024 tokens exceed the 512 positions", "kv-2", "--prompt-tokens")


def test_a_system_that_cannot_measure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_child, "RESET_PEAK", "no such command")
    with pytest.raises(InputError, match="peak of resident memory cannot be measured here"):
        memory_child._reset_peak()


def test_models_of_one_folder_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_model(tmp_path / name / "same")
    names = [str(tmp_path / "a" / "same"), str(tmp_path / "b" / "same" / "config.json")]
    assert [model.name for model in bench_models(names, random_weights=True)] == ["same", "same#2"]
