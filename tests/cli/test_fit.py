"""`fit`: sizes of a deployment without weights, and a model that is pruned until it fits."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from grasp_deploy.demo.run import MODEL as DEMO
from tests.cli.command import document, grasp_deploy, succeeded
from tests.installed import pretend
from tests.tiny import MAGNITUDE, VARIANTS, tiny_config

LOAD = ("--concurrency", "8", "--context", "64")
QUICK = (
    *("--calibration-sequences", "8", "--sequence-length", "64", "--method", MAGNITUDE),
    "--set=scale-epochs=0",
)
SMALL = ("--gpu-memory", "6.8MiB", "--overhead", "1MiB", *LOAD)


@pytest.fixture
def config(tiny_folder: Path, work: Path) -> Path:
    """A config.json in an empty folder."""
    return Path(shutil.copy(tiny_folder / "config.json", work / "model.json"))


@pytest.mark.parametrize(
    ("memory", "fits", "verdict", "code"),
    [
        ("1GiB", True, "fits as it is: serve it unpruned", 0),
        ("6.8MiB", False, "Quantising is enough: see what it costs", 0),
        ("5MiB", False, "the smallest possible is --gpu-memory", 1),
    ],
)
def test_a_dry_run_needs_no_weights_and_says_by_its_code_if_anything_fits(
    config: Path, memory: str, fits: bool, verdict: str, code: int
) -> None:
    words = ("fit", config, *SMALL, "--gpu-memory", memory, "--dry-run")
    ended, told = grasp_deploy(*words, "--json"), grasp_deploy(*words)
    assert (ended.code, told.code) == (code, code), ended.stderr + told.stderr
    document = json.loads(ended.stdout)
    assert document["fits"] is fits and verdict in document["verdict"]
    assert verdict in " ".join(told.stdout.split())
    for offer in document["offers"]:
        parts = [offer[f"{part}_bytes"] for part in ("weight", "kv", "activation", "overhead")]
        assert all(isinstance(size, int) for size in parts)
        assert offer["total_bytes"] == sum(parts)
        assert offer["left_bytes"] == document["usable_bytes"] - sum(parts)
        assert offer["fits"] == (offer["left_bytes"] >= 0)
    assert sorted(path.name for path in config.parent.iterdir()) == ["model.json", "text.txt"]


def test_a_pruned_model_is_not_called_unpruned(pruned: Path) -> None:
    for memory, words in (("1GiB", "fits as it is"), ("6.3MiB", "Quantising is enough")):
        options = (*SMALL, "--gpu-memory", memory, "--dry-run", "--json")
        verdict = document("fit", pruned, *options)["verdict"]
        assert words in verdict and "prune" not in verdict.replace(str(pruned), "")


def test_the_commands_name_a_folder(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a config.json; any other file stands for a model that lies elsewhere."""
    monkeypatch.chdir(config.parent)
    inside = shutil.copy(config, config.parent / "config.json")
    folder = config.parent
    places = {config: "MODEL", inside: str(folder), folder: str(folder)}
    for given, named in {**places, Path(): ".", Path("config.json"): "."}.items():
        offers = document("fit", given, *SMALL, "--dry-run", "--json")["offers"]
        commands = [offer["command"] for offer in offers]
        assert commands[0].startswith(f"grasp-deploy serve {named} -- --max-model-len 64")
        name = Path(named).absolute().name
        quantised = f"grasp-deploy quantize {named} --scheme w4a16 --output {name}-w4a16 && "
        assert any(command.startswith(quantised) for command in commands)
        assert commands[-1].startswith(f"grasp-deploy compress {named} --gpu-memory 6.8MiB ")


@pytest.mark.parametrize(
    ("memory", "options", "rows"),
    [
        ("10380902B", "", 2),  # unquantised it needs 32 channels in each layer, which are 12.4 %
        ("10.5MiB", "", 3),
        ("10.5MiB", "--ffn-multiple 128", 2),
        ("10MiB", "--kv-multiple 2", 2),
        ("12MiB", "--set targets=ffn --set compensation=False --seed 3", 2),
        ("14.5MiB", "--set targets=kv --calibration 'a text.txt' --gradient-checkpointing", 1),
    ],
)
def test_compress_takes_the_commands_with_all_options(memory: str, options: str, rows: int) -> None:
    """Down to the least that layers keep in whole multiples."""
    given = shlex.split(options)
    load = ("--overhead", "1B", "--concurrency", "1", "--context", "64", *given)
    offers = document("fit", DEMO, "--gpu-memory", memory, *load, "--dry-run", "--json")["offers"]
    pruned = [offer for offer in offers if offer["keep"] is not None]
    assert len(pruned) == rows
    for offer in pruned:
        words = shlex.split(offer["command"].partition(" && ")[0])[1:]
        assert set(given) <= set(words), words
        assert ("--gpu-memory" in words) == (offer["bits"] is None), words
        succeeded(*words, "--dry-run")


def test_more_tokens_than_those_of_the_load_are_explained() -> None:
    load = ("--overhead", "1B", "--concurrency", "1", "--context", "64", "--dry-run")
    said = " ".join(grasp_deploy("fit", DEMO, "--gpu-memory", "10.5MiB", *load).stdout.split())
    assert "--cached-tokens before 4 bits: the load's 80," in said, "and the spare block"
    assert "before 4 bits" not in grasp_deploy("fit", DEMO, "--gpu-memory", "1GiB", *load).stdout


def test_what_can_only_just_be_pruned_to_fit_is_offered(work: Path) -> None:
    """By the budget itself: a share in thousandths would be below the least that it can be."""
    tiny_config(**VARIANTS["qwen3-moe"], dtype="float32").to_json_file(work / "config.json")
    load = ("--gpu-memory", "5371000B", "--overhead", "1B", "--concurrency", "4", "--context", "64")
    offers = document("fit", work, *load, "--dry-run", "--json")["offers"]
    (command,) = [offer["command"] for offer in offers if offer["keep"] is not None]
    succeeded(*shlex.split(command.partition(" && ")[0])[1:], "--dry-run")


def test_compress_names_the_flags_of_the_load(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, and where no vLLM is installed, a share of the memory; sequences and context."""
    pretend(monkeypatch, lambda name: "0.32.0")
    load = ("--gpu-memory", "19MiB", "--overhead", "1MiB", "--concurrency", "8", "--context", "256")
    ended = succeeded("compress", DEMO, *load, *QUICK, "-o", "out")
    flags = "--max-model-len 256 --max-num-seqs 8 --max-num-batched-tokens 2048"
    command = f"grasp-deploy serve out -- {flags} --gpu-memory-utilization 0.9"
    assert command in " ".join(ended.stdout.split())


def test_the_last_line_is_the_command_to_serve(
    tiny_folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the model is made and when it is there already; no vLLM starts.

    On vLLM's CPU build, where a share of the memory means something else, offers size the cache.
    """
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    monkeypatch.setattr("grasp_deploy.engine.offline.child", None)
    for _ in range(2):
        ended = succeeded("fit", tiny_folder, *SMALL, *QUICK, "-o", "out")
        assert "grasp-deploy serve out -- --max-model-len 64" in ended.stdout.splitlines()[-1]
    assert "already the result" in ended.stderr
    record = document("fit", tiny_folder, *SMALL, *QUICK, "-o", "out", "--json")
    assert record["result"]["pruned"]
    for offer in record["offers"]:
        cache_bytes = offer["kv_bytes"] + max(0, offer["left_bytes"])
        assert offer["command"].endswith(f" --kv-cache-memory-bytes {cache_bytes}")
