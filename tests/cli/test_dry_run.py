"""`--dry-run` of `compress` and `heal`: from config.json alone, whether it fits or not."""

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from grasp_deploy.compression.stages import OF_RECOVERY
from tests.cli.command import assert_refused, document, grasp_deploy, tree
from tests.tiny import MAGNITUDE, save_tiny

ROOT = Path(__file__).parents[2]
DOCS, CONFIGS = ROOT / "docs" / "compress.md", ROOT / "benchmarks" / "configs"
LLAMA_2_70B = CONFIGS / "llama-2-70b.json"
KEEP = ("--keep", "0.6", "--dry-run")


@pytest.mark.parametrize(
    ("memory", "fits", "verdict", "code"),
    [
        ("210GB", [True] * 6, "It fits into 195.58 GiB on one process.", 0),
        (
            "80GiB",
            [False, True, False, True, True, True],
            "255 GiB of it, which is slow, or on 4 processes",
            0,
        ),
        ("8GiB", [False] * 6, "Nothing fits into 8.00 GiB: take a larger", 1),
    ],
)
def test_a_large_model_on_gpus_that_are_not_here(
    work: Path, memory: str, fits: list[bool], verdict: str, code: int
) -> None:
    before = tree(work)
    words = ("compress", LLAMA_2_70B, *KEEP, "--gpu-memory", memory)
    told, ended = grasp_deploy(*words), grasp_deploy(*words, "--json")
    assert (told.code, ended.code) == (code, code), told.stderr + ended.stderr
    assert verdict in " ".join(told.stdout.split())
    document = json.loads(ended.stdout)
    assert verdict in document["verdict"]
    assert [way["fits"] for way in document["ways"]] == fits
    for way in document["ways"]:
        assert way["device_bytes"] == max(sum(terms.values()) for terms in way["stages"].values())
    assert document["seconds"] is None, "no time of that GPU is known"
    assert document["forward_passes"]["own-text"] == 512 + 21 * 50, "25 rows fit at once"
    assert tree(work) == before


@pytest.mark.parametrize(("column", "name"), [(1, "llama-2-7b"), (2, "qwen3-8b")])
def test_the_documentation_states_what_is_predicted(column: int, name: str) -> None:
    rows = [line.strip("| ").split(" | ") for line in DOCS.read_text().splitlines()]
    stated = {row[0]: row[column] for row in rows if len(row) == 3}

    def peaks(*options: str) -> dict[str, str]:
        words = ("compress", CONFIGS / f"{name}.json", *KEEP, "--gpu-memory=80GiB", "--json")
        one = json.loads(grasp_deploy(*words, *options).stdout)["ways"][0]
        sizes = {stage: sum(terms.values()) for stage, terms in one["stages"].items()}
        sizes["weights"] = one["stages"]["scales"]["weights"]
        return {stage: f"{size / 2**30:.1f}" for stage, size in sizes.items()}

    plain, checkpointed = peaks(), peaks("--gradient-checkpointing")
    assert stated["the dense model"] == plain["weights"]
    assert stated["writing own text"] == plain["own-text"]
    assert stated["scoring a layer in a round"] == plain["rounds"]
    assert stated["a step of gates or scales"] == plain["gates"]
    assert stated["the same with `--gradient-checkpointing`"] == checkpointed["gates"]
    assert stated["least squares"] == plain["compensation"]


@pytest.mark.parametrize(("column", "keep"), [(1, "0.8"), (2, "0.6")])
def test_the_documentation_states_what_recovery_takes(column: int, keep: str) -> None:
    lines = (DOCS.parent / "recover.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.count("|") == 4]
    stated = {row[0]: row[column] for row in rows if " / " in row[-1]}
    words = ("compress", CONFIGS / "llama-2-7b.json", f"--keep={keep}", "--recover=1M", "--dry-run")

    def sizes(*options: str) -> dict[str, str]:
        ways = json.loads(grasp_deploy(*words, "--gpu-memory=80GiB", "--json", *options).stdout)
        peaks = {str(w["processes"]): sum(w["stages"]["recovery"].values()) for w in ways["ways"]}
        return {count: f"{size / 2**30:.0f}" for count, size in peaks.items() if count != "16"}

    plain, checkpointed = sizes(), sizes("--gradient-checkpointing")
    assert stated == {count: f"{plain[count]} / {checkpointed[count]}" for count in plain}


def test_options_for_one_process_are_not_predicted_for_more() -> None:
    words = ("--method", MAGNITUDE, "--gpu-memory", "80GiB", "--json")
    ended = grasp_deploy("compress", LLAMA_2_70B, *KEEP, *words)
    assert ended.code == 1 and len(json.loads(ended.stdout)["ways"]) == 1
    for name in ("math:absent", "math:pi"):
        ended = grasp_deploy("compress", LLAMA_2_70B, *KEEP, "--method", name)
        assert_refused(ended, f"--method {name}")


def test_this_machine_with_a_time(tiny_folder: Path, work: Path) -> None:
    config = Path(shutil.copy(tiny_folder / "config.json", work / "model.json"))
    words = ("compress", config, *KEEP, "--device=cpu")
    told = " ".join(grasp_deploy(*words).stdout.split())
    assert "GiB on one process." in told and "(hours, minutes, seconds) on one process" in told
    document = json.loads(grasp_deploy(*words, "--json").stdout)
    assert document["seconds"] > 0
    for option in ("scale-epochs=0", "compensation=false"):
        fewer = json.loads(grasp_deploy(*words, "--set", option, "--json").stdout)
        assert fewer["forward_passes"].keys() == fewer["ways"][0]["stages"].keys(), option
        assert sum(fewer["forward_passes"].values()) < sum(document["forward_passes"].values())


def test_it_is_not_for_torchrun(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert_refused(grasp_deploy("compress", tiny_folder, *KEEP), "without torchrun")


def test_a_family_takes_the_memory_of_its_largest_and_the_time_of_all(work: Path) -> None:
    words = ("compress", CONFIGS / "qwen3-0.6b.json", "--dry-run", "--gpu-memory", "80GiB")
    told = [
        json.loads(grasp_deploy(*words, "--json", "--recover=1M", "--keep", keeps).stdout)
        for keeps in ("0.8", "0.8,0.6")
    ]
    assert told[0]["ways"] == told[1]["ways"]
    passes = [one["forward_passes"] for one in told]
    for stage in ("own-text", "recovery-text"):  # the members share it
        assert passes[0][stage] == passes[1][stage]
    assert passes[1]["scales"] == 2 * passes[0]["scales"]
    once = passes[0]["rounds"] / 6  # to score or to refit; three rounds each, after a refit of 0.8
    assert passes[1]["rounds"] == once * (6 + 1 + 6)
    bytes_allowed = json.loads(grasp_deploy(*words, "--json", "--weights", "1.05GiB").stdout)
    assert bytes_allowed["forward_passes"]["rounds"] == once * 2, "7 % go in one round"
    refused = grasp_deploy(*words, "--max-loss", "0.1")
    assert_refused(refused, "tries as many as it needs")
    below = grasp_deploy(*words, "--keep", "0.8,0.0001")
    assert_refused(below, "--keep 0.0001 is beyond reach")


def test_a_recovery_is_predicted_by_the_checkpoints_own_shape(
    pruned_once: Path, tiny_folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = (
        "--model",
        tiny_folder,
        "--calibration=text.txt",
        "--recover=4k",
        "--dry-run",
        "--json",
    )
    predicted = document("heal", pruned_once, *texts)
    whole = document("compress", *texts[1:], "--keep=1")
    assert tuple(predicted["forward_passes"]) == OF_RECOVERY, "no other stage runs"
    assert predicted["seconds"] > 0
    sizes = [sum(one["ways"][0]["stages"]["recovery"].values()) for one in (predicted, whole)]
    assert sizes[0] < sizes[1], "fewer weights learn"
    told = grasp_deploy("heal", pruned_once, *texts[:-1], "--gpu-memory=1MB")
    assert told.code == 1 and "Peak memory of each GPU" in told.stdout
    fetch = Mock(return_value=work)  # of the hub
    monkeypatch.setattr("grasp_deploy.checkpoint.read.source._fetch", fetch)
    shutil.copy(tiny_folder / "config.json", work)
    hub = document("heal", pruned_once, "--model=team/tiny", *texts[2:])
    assert hub["ways"] == predicted["ways"]
    assert fetch.call_args.args[2] == ("config.json",), "no weights"
    save_tiny("llama", work / "other", num_hidden_layers=2)
    other = ("heal", pruned_once, "--model=other", *texts[2:])
    assert_refused(grasp_deploy(*other), "name the model that it was made for")
    for given, why in (
        ((), "or --dry-run"),
        (("-o=out", "--gpu-memory=1MB"), "give --dry-run too"),
    ):
        assert_refused(grasp_deploy("heal", pruned_once, *texts[:4], *given), why)
