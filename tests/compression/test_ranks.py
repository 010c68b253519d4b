"""Several processes share a compression: the results are those of one process."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.source import WEIGHTS_FILE
from tests.cli.command import environment, grasp_deploy
from tests.compression.rank_checks import LEARNT, RESULTS, disturbed, results_of
from tests.tiny import VARIANTS, save_tiny, tiny_model

pytestmark = pytest.mark.slow
PROCESSES = 3
SHARED = ("llama", "llama-tied", "llama-biases", "qwen3-tied", "mistral-sliding", "gemma3-sliding")


def torchrun(processes: int, *words: str, started_by: str = "-m") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*command, f"--nproc-per-node={processes}", started_by, *words],
        env={**environment(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    printed, _ = process.communicate(timeout=300)
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
    dense, student = tiny_model(**VARIANTS[name]), tiny_model(**VARIANTS[name])
    start = disturbed(load_file(shared[name] / WEIGHTS_FILE))
    student.load_state_dict(start, strict=False)
    student.requires_grad_(True)
    student.model.embed_tokens = student.lm_head = nn.Identity()
    expected = results_of(dense.requires_grad_(False), student)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        if not key.startswith(LEARNT):
            torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=3e-5, msg=key)
        else:  # Adam's first step is as long for a gradient that rounding made as for any other
            learnt = tensor - start[key.removeprefix(LEARNT)]
            assert float((found[key] - tensor).norm()) < 0.05 * float(learnt.norm()), key
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


SLOW_TO_SAY_SO = """
import time
from grasp_deploy.cli import main, ranks
ends_first = ranks._ends_first
ranks._ends_first = lambda store: (ends_first(store), time.sleep(3))[0]
main()
"""


def test_a_killed_process_ends_all_and_any_number_goes_on(tmp_path: Path) -> None:
    """The checkpoint is that of a run in one process, which nobody killed.

    The others hear of the loss twice, by a dead connection and by torchrun's signal.
    """
    save_tiny("llama", tmp_path / "model")
    alone, output = tmp_path / "alone", tmp_path / "shared"
    recover = ("--recover", "2k")
    assert grasp_deploy(*compressed(tmp_path / "model", alone, *recover)[1:]).code == 0
    words = compressed(tmp_path / "model", output, *recover)[1:]
    run = torchrun(2, sys.executable, "-c", SLOW_TO_SAY_SO, *words, started_by="--no-python")
    saved = tmp_path / "shared.partial" / "gates.safetensors"
    while not saved.exists():
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)
    killed_at = time.monotonic()
    os.kill(max(children_of(run.pid)), signal.SIGKILL)
    code, printed = ended(run)
    assert code == 1 and time.monotonic() - killed_at < 60
    said = [line for line in printed.splitlines() if line.startswith("stopped: ")]
    assert len(said) == 1, printed
    assert "give the same command again with --resume" in said[0]
    code, printed = ended(torchrun(3, "grasp_deploy", *words, "--resume"))
    assert code == 0, printed
    assert printed.count(f"wrote {output}") == 1
    first, second = (load_plan(folder / PLAN_FILE) for folder in (alone, output))
    assert torch.equal(first.mask, second.mask)
    torch.testing.assert_close(first.scales, second.scales, rtol=1e-4, atol=0)
    weights = [load_file(folder / WEIGHTS_FILE) for folder in (alone, output)]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-3, atol=1e-4, msg=name)


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
    quick = ("--method", "progressive", "--set", "scale-epochs=0")
    words = compressed(tmp_path / "model", tmp_path / "out", *quick)[1:]
    code, printed = ended(
        torchrun(2, sys.executable, "-c", LOST_LEAD, *words, started_by="--no-python")
    )
    assert code == 1 and printed.count("stopped: ") == 1, printed
    assert not (tmp_path / "out").exists()
    code, printed = ended(torchrun(2, "grasp_deploy", *words, "--resume"))
    assert code == 0 and printed.count(f"wrote {tmp_path / 'out'}") == 1, printed


SAVES_OF_ONE = """
import os
from grasp_deploy.cli import main
from grasp_deploy.compression import stages
stages.SAVE_EVERY_SECONDS = 1e9 if int(os.environ["RANK"]) else -1.0
main()
"""


def test_two_processes_recover_and_save_together(tmp_path: Path) -> None:
    """By the clock of the lead; the weights are those of one process.

    Fewer sequences of calibration than processes are enough.
    """
    save_tiny("llama", tmp_path / "model")
    model, pruned = str(tmp_path / "model"), str(tmp_path / "pruned")
    text = ("--calibration-sequences", "24", "--sequence-length", "24", "--device", "cpu")
    quick = (*text, "--set", "rounds=1", "--set", "scale-epochs=0", "--keep", "0.6")
    few = ("--calibration-sequences", "2", *text[2:])
    heal = ("heal", pruned, *few, "--recover", "8k", "--output")
    assert grasp_deploy("compress", model, *quick, "--output", pruned).code == 0
    assert grasp_deploy(*heal, tmp_path / "alone").code == 0
    script = (sys.executable, "-c", SAVES_OF_ONE, *heal, str(tmp_path / "shared"))
    code, printed = ended(torchrun(2, *script, started_by="--no-python"))
    assert code == 0, printed
    alone, shared = (load_file(tmp_path / n / WEIGHTS_FILE) for n in ("alone", "shared"))
    for name, weight in alone.items():
        torch.testing.assert_close(shared[name], weight, rtol=1e-3, atol=1e-4, msg=name)


def children_of(process: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        ("--method m:f --set rounds=5", "--method m:f"),
        ("--keep 0.5$RANK", "--keep"),  # the last of an option given twice counts
        ("--output $RANK", "--output"),
    ],
)
def test_what_processes_cannot_share_is_refused_once(
    tmp_path: Path, words: str, culprit: str
) -> None:
    save_tiny("llama", tmp_path / "model")
    command = compressed(tmp_path / "model", tmp_path / "out")
    code, errors = run_in_shells(f"{shlex.join([sys.executable, '-m', *command])} {words}")
    assert code == 1 and len(errors) == 1 and culprit in errors[0], errors
    assert not any(tmp_path.glob("out*"))


def test_what_was_written_is_looked_at_by_the_lead_alone(tmp_path: Path) -> None:
    """The second process sees no output, as on another machine."""
    for number in "01":
        save_tiny("llama", tmp_path / number / "model")
    text = "--calibration-sequences 24 --sequence-length 24 --device cpu --set rounds=1"
    load = "--gpu-memory 5MiB --overhead 1KiB --concurrency 2 --context 32"
    words = f"compress model {text} --set scale-epochs=0 {load} --output out"
    script = f"cd {tmp_path}/$RANK && exec {sys.executable} -m grasp_deploy {words}"
    code, printed = ended(torchrun(2, "sh", "-c", script, started_by="--no-python"))
    assert code == 0 and printed.count("wrote out") == 1, printed
    assert not (tmp_path / "1" / "out").exists()


def test_other_commands_run_in_one_process() -> None:
    code, printed = ended(torchrun(1, "grasp_deploy", "inspect", "model"))
    assert code == 1 and "error: inspect runs in one process" in printed


def run_in_shells(command: str) -> tuple[int, list[str]]:
    """Run a line of the shell in two processes, which knows each one's RANK; code and errors."""
    code, printed = ended(torchrun(2, "sh", "-c", command, started_by="--no-python"))
    return code, [line for line in printed.splitlines() if line.startswith(("error", "stopped"))]


@pytest.mark.parametrize("file", ["model.safetensors", "generation_config.json"])
def test_processes_with_other_files_under_the_same_name_are_refused(
    tmp_path: Path, file: str
) -> None:
    for number in "01":
        save_tiny("llama", tmp_path / number / "model", seed=int(number) * (file == WEIGHTS_FILE))
    if file != WEIGHTS_FILE:
        path = tmp_path / "1" / "model" / file
        path.write_text(path.read_text().replace("{", "{ ", 1))
    command = shlex.join([sys.executable, "-m", *compressed(Path("model"), tmp_path / "out")])
    code, errors = run_in_shells(f"cd {tmp_path}/$RANK && exec {command}")
    assert code == 1 and len(errors) == 1 and file in errors[0], errors
    assert not any(tmp_path.glob("out*"))
