"""`compress --dry-run`: from config.json alone, whether it fits or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command import assert_refused, grasp_deploy, tree

README = Path(__file__).parents[2] / "README.md"
CONFIGS = README.parent / "benchmarks" / "configs"
LLAMA_2_70B = CONFIGS / "llama-2-70b.json"
KEEP = ("--keep", "0.6", "--dry-run")


@pytest.mark.parametrize(
    ("memory", "fits", "verdict", "code"),
    [
        ("192GiB", [True] * 6, "It fits into 192 GiB on one process.", 0),
        ("80GiB", [False, True, False, True, True, True], "memory, 255 GiB of it, which is", 0),
        ("8GiB", [False] * 6, "Nothing fits into 8 GiB a GPU, on up to 16: take larger", 1),
    ],
)
def test_a_large_model_on_gpus_that_are_not_here(
    work: Path, memory: str, fits: list[bool], verdict: str, code: int
) -> None:
    before = tree(work)
    words = ("compress", LLAMA_2_70B, *KEEP, "--device-memory", memory)
    told, ended = grasp_deploy(*words), grasp_deploy(*words, "--json")
    assert (told.code, ended.code) == (code, code), told.stderr + ended.stderr
    assert verdict in " ".join(told.stdout.split())
    document = json.loads(ended.stdout)
    assert verdict in document["verdict"]
    assert [way["fits"] for way in document["ways"]] == fits
    for way in document["ways"]:
        assert way["disk_bytes"] == sum(way["disk"].values())
        assert way["device_bytes"] == max(stage["device_bytes"] for stage in way["stages"])
        for stage in way["stages"]:
            sizes = [*stage["device"].values(), *stage["host"].values(), *stage["lead"].values()]
            assert all(isinstance(size, int) for size in sizes)
            assert stage["device_bytes"] == sum(stage["device"].values())
        assert way["seconds"] is None, "no rate of that GPU is known"
    assert tree(work) == before


@pytest.mark.parametrize(("column", "name"), [(1, "llama-2-7b"), (2, "qwen3-8b")])
def test_the_readme_states_what_is_predicted(column: int, name: str) -> None:
    rows = [line.strip("| ").split(" | ") for line in README.read_text().splitlines()]
    stated = {row[0]: row[column] for row in rows if len(row) == 3}

    def peaks(*options: str) -> dict[str, str]:
        words = ("compress", CONFIGS / f"{name}.json", *KEEP, "--device-memory=80GiB", "--json")
        one = json.loads(grasp_deploy(*words, *options).stdout)["ways"][0]
        sizes = {stage["stage"]: stage["device_bytes"] for stage in one["stages"]}
        sizes["weights"] = one["stages"][0]["device"]["weights"]
        return {stage: f"{size / 2**30:.1f}" for stage, size in sizes.items()}

    plain, checkpointed = peaks(), peaks("--gradient-checkpointing")
    assert stated["the dense model"] == plain["weights"]
    assert stated["writing own text"] == plain["own text"]
    assert stated["scoring a layer in a round"] == plain["rounds"]
    assert stated["a step of gates or scales"] == plain["scales"]
    assert stated["the same with `--gradient-checkpointing`"] == checkpointed["scales"]
    assert stated["least squares"] == plain["compensation"]


def test_options_for_one_process_are_not_said_to_have_been_tried_on_more() -> None:
    words = ("--method", "magnitude", "--device-memory", "80GiB")
    ended = grasp_deploy("compress", LLAMA_2_70B, *KEEP, *words)
    assert ended.code == 1 and "these options are for one process" in ended.stdout


def test_this_machine_with_times(tiny_folder: Path, work: Path) -> None:
    config = Path(shutil.copy(tiny_folder / "config.json", work / "model.json"))
    ended = grasp_deploy("compress", config, *KEEP, "--device", "cpu")
    assert ended.code == 0, ended.stderr
    told = " ".join(ended.stdout.split())
    assert "on one process" in told and "own text" in told and "The largest is" in told
    way = json.loads(grasp_deploy("compress", config, *KEEP, "--device=cpu", "--json").stdout)[
        "ways"
    ][0]
    assert all(seconds > 0 for seconds in way["seconds"].values())
    for option in ("scale-epochs=0", "compensation=false", "start=equal"):
        ended = grasp_deploy("compress", config, *KEEP, "--set", option, "--device=cpu", "--json")
        way = json.loads(ended.stdout)["ways"][0]
        assert way["seconds"].keys() == {stage["stage"] for stage in way["stages"]}, option


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--keep", "0.6"), ("give --output, or --dry-run",)),
        (("--keep=0.6", "-o", "out", "--device-memory=9GiB"), ("for --dry-run alone",)),
        ((*KEEP, "--device-memory", "much"), ("--device-memory 'much'", "is not a size")),
        (("--keep", "0.6,0.4", "--dry-run"), ("one budget",)),
        ((*KEEP, "--sequence-length", "5000"), ("longer than the", "positions that the model")),
        (("--max-loss", "0.1", "--dry-run"), ("one budget",)),
    ],
)
def test_refusals(tiny_folder: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_refused(grasp_deploy("compress", tiny_folder, *options), *words)


@pytest.mark.parametrize(
    "options",
    [
        ("--set=compensation-sequences=48", "--calibration=self=0"),
        ("--set=criterion-sequences=45", "--calibration-sequences=48"),  # two halves of 22
        ("--set=own-temperature=2", "--calibration=self=0"),
    ],
)
def test_it_refuses_what_the_run_refuses(
    tiny_folder: Path, work: Path, options: tuple[str, ...]
) -> None:
    text = ("--calibration=text.txt", "--calibration-sequences=32", "--sequence-length=16")
    words: tuple[str | Path, ...] = ("compress", tiny_folder, "--keep=0.6", *text, *options)
    refused = grasp_deploy(*words, "-o", "out")
    _, line = refused.stderr.splitlines()  # the first shows the text that the run has read
    assert refused.code == 2 and grasp_deploy(*words, "--dry-run").stderr == f"{line}\n"


def test_it_is_not_for_torchrun(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert_refused(grasp_deploy("compress", tiny_folder, *KEEP), "without torchrun")
