"""Several processes share a compression: the results are those of one process."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.folder import WEIGHTS_FILE
from tests.cli.command import environment
from tests.compression.rank_checks import RESULTS, results_of
from tests.tiny import VARIANTS, save_tiny, tiny_model

pytestmark = pytest.mark.slow
PROCESSES = 3
SHARED = ("llama", "llama-tied", "llama-biases", "qwen3-tied", "mistral-sliding")


def torchrun(processes: int, *words: str, started_by: str = "-m") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*command, f"--nproc-per-node={processes}", started_by, *words],
        env={**environment(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str]:
    printed, _ = process.communicate(timeout=seconds)
    return process.returncode, printed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of tiny models, with what three processes made of each."""
    folders = {name: tmp_path_factory.mktemp(name) for name in SHARED}
    for name, folder in folders.items():
        save_tiny(directory=folder, **VARIANTS[name])
    words = ("tests.compression.rank_checks", *map(str, folders.values()))
    code, printed = ended(torchrun(PROCESSES, *words))
    assert code == 0, printed
    return folders


@pytest.mark.parametrize("name", SHARED)
def test_stages_of_three_processes_are_those_of_one(shared: dict[str, Path], name: str) -> None:
    found = load_file(shared[name] / RESULTS)
    found.pop("held")
    expected = results_of(tiny_model(**VARIANTS[name]))
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=3e-5, msg=key)
    assert float(expected["loss of refitted"]) != float(expected["loss of dense"])


def test_a_process_holds_its_part_of_the_weights_and_two_half_layers(
    shared: dict[str, Path],
) -> None:
    """Counted from storages in the first model's forward pass; later ones still find its rest.

    FSDP2 keeps the buffer of a gather until the next: what is gathered, half a layer, counts twice.
    """
    model = tiny_model(**VARIANTS[SHARED[0]])

    def size(tensors: Iterable[Tensor]) -> int:
        return sum(tensor.numel() for tensor in tensors) * 4

    parts = (weight[: -(-len(weight) // PROCESSES)] for weight in model.parameters())
    layer = model.model.layers[0]
    half = max(size(layer.self_attn.parameters()), size(layer.mlp.parameters()))
    most = size(parts) + 2 * half + 20_000  # norms, hidden states
    held = load_file(shared[SHARED[0]] / RESULTS)["held"]
    assert len(held) == PROCESSES and size(model.parameters()) / PROCESSES < int(held.min())
    assert int(held.max()) <= most < 0.75 * size(model.parameters())


def compressed(model: Path, output: Path, *more: str) -> tuple[str, ...]:
    learning = ["--set", "rounds=2"]
    text = ["--calibration-sequences", "48", "--sequence-length", "24", "--device", "cpu"]
    command = ["grasp_deploy", "compress", str(model), "--output", str(output)]
    return (*command, "--keep", "0.6", *text, *learning, *more)


def test_a_killed_process_ends_all_and_any_number_goes_on(tmp_path: Path) -> None:
    """The checkpoint is that of a run in one process, which nobody killed."""
    save_tiny("llama", tmp_path / "model")
    alone, output = tmp_path / "alone", tmp_path / "shared"
    words = compressed(tmp_path / "model", alone)
    subprocess.run([sys.executable, "-m", *words], env=environment(), check=True, timeout=300)
    run = torchrun(2, *compressed(tmp_path / "model", output))
    saved = tmp_path / "shared.partial" / "gates.safetensors"
    while not saved.exists():
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)
    killed_at = time.monotonic()
    os.kill(max(children_of(run.pid)), signal.SIGKILL)
    code, printed = ended(run)
    assert code == 1 and time.monotonic() - killed_at < 60
    said = [line for line in printed.splitlines() if line.startswith("stopped: ")]
    assert len(said) == 1 and "give the same command again with --resume" in said[0]
    code, printed = ended(torchrun(3, *compressed(tmp_path / "model", output, "--resume")))
    assert code == 0, printed
    assert printed.count(f"wrote {output}") == 1
    first, second = (load_plan(folder / PLAN_FILE) for folder in (alone, output))
    assert torch.equal(first.mask, second.mask)
    torch.testing.assert_close(first.scales, second.scales, rtol=1e-4, atol=0)


LOST_LEAD = """
import os, signal, sys
from grasp_deploy.cli import main
from grasp_deploy.compression import compress
compress.write_checkpoint = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


def test_a_lead_that_is_lost_while_it_writes_is_told_of(tmp_path: Path) -> None:
    """The others have nothing left to do by then; one of them says so, and nothing stays behind."""
    save_tiny("llama", tmp_path / "model")
    words = compressed(tmp_path / "model", tmp_path / "out")[1:]
    code, printed = ended(
        torchrun(2, sys.executable, "-c", LOST_LEAD, *words, started_by="--no-python")
    )
    assert code == 1 and printed.count("stopped: ") == 1, printed
    assert not (tmp_path / "out").exists()
    code, printed = ended(torchrun(2, "grasp_deploy", *words, "--resume"))
    assert code == 0 and printed.count(f"wrote {tmp_path / 'out'}") == 1, printed


def children_of(process: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_what_processes_cannot_share_is_refused_once(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    words = compressed(tmp_path / "model", tmp_path / "out", "--method", "m:f", "--set", "rounds=5")
    code, printed = ended(torchrun(2, *words))
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert code == 1 and len(errors) == 1
    assert "--method m:f is called with whole weights" in errors[0]
    code, printed = ended(torchrun(1, "grasp_deploy", "inspect", str(tmp_path / "model")))
    assert "error: inspect runs in one process: start it without torchrun" in printed
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    ("other", "said"),
    [("--keep 0.5$RANK", "--keep 0.5 -> 0.51"), ("--output $RANK", "--output 0 -> 1")],
)
def test_processes_with_other_commands_are_refused(tmp_path: Path, other: str, said: str) -> None:
    """The last of an option given twice counts."""
    save_tiny("llama", tmp_path / "model")
    words = compressed(tmp_path / "model", tmp_path / "out")
    command = f"{shlex.join([sys.executable, '-m', *words])} {other}"
    code, printed = ended(torchrun(2, "sh", "-c", command, started_by="--no-python"))
    errors = [line for line in printed.splitlines() if line.startswith(("error", "stopped"))]
    assert code == 1 and len(errors) == 1
    assert f"process 1 was started with other options than process 0 ({said})" in errors[0]
    assert not any(tmp_path.glob("out*"))


def run_in_folders(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Run two processes, each in the folder of its number; exit code and errors."""
    command = f"cd {folder}/$RANK && exec {shlex.join([sys.executable, '-m', *words])}"
    code, printed = ended(torchrun(2, "sh", "-c", command, started_by="--no-python"))
    return code, [line for line in printed.splitlines() if line.startswith(("error", "stopped"))]


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_processes_with_other_files_under_the_same_name_are_refused(
    tmp_path: Path, file: str
) -> None:
    for number in "01":
        save_tiny("llama", tmp_path / number / "model", seed=int(number) * (file == WEIGHTS_FILE))
    if file != WEIGHTS_FILE:
        path = tmp_path / "1" / "model" / file
        path.write_text(path.read_text().replace("{", "{ ", 1))
    code, errors = run_in_folders(tmp_path, *compressed(Path("model"), tmp_path / "out"))
    assert code == 1 and len(errors) == 1, errors
    assert f"process 1 has not the same {file} as process 0" in errors[0]
    assert not any(tmp_path.glob("out*"))


def test_processes_with_copies_of_the_same_files_go_on(tmp_path: Path) -> None:
    """As on machines without a shared disk: other places and times, the same bytes."""
    save_tiny("llama", tmp_path / "0" / "model")
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    code, errors = run_in_folders(tmp_path, *compressed(Path("model"), tmp_path / "out"))
    assert code == 0 and not errors


IMPATIENT = """
import os, sys
from datetime import timedelta
if os.environ["RANK"] == "1":
    sys.exit(0)
from grasp_deploy.cli import main, ranks
ranks.JOINING = timedelta(seconds=2)
main()
"""


def test_a_process_that_never_joins_is_told_of(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    words = compressed(tmp_path / "model", tmp_path / "out")[1:]
    run = torchrun(2, sys.executable, "-c", IMPATIENT, *words, started_by="--no-python")
    code, printed = ended(run)
    assert code == 1 and "look if one has ended" in printed


def test_processes_that_torchrun_did_not_start_are_refused(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    run = subprocess.run(
        [sys.executable, "-m", *compressed(tmp_path / "model", tmp_path / "out")],
        env={**environment(), "WORLD_SIZE": "8", "RANK": "3"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 2 and "start the command with torchrun" in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("left", [{}, {"RANK": "a"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_what_is_left_of_torchruns_environment_is_refused(
    tmp_path: Path, left: dict[str, str]
) -> None:
    save_tiny("llama", tmp_path / "model")
    run = subprocess.run(
        [sys.executable, "-m", *compressed(tmp_path / "model", tmp_path / "out")],
        env={**environment(), "TORCHELASTIC_RUN_ID": "none", **left},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 2 and "unset TORCHELASTIC_RUN_ID" in run.stderr
    assert len(run.stderr.splitlines()) == 1
