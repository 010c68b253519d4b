"""Models from folders and from a hub: what is fetched, what is never fetched, what is refused.

The hub is a small server of our own behind HF_ENDPOINT, and its client runs as a new process,
because huggingface_hub reads its environment when it is imported.
"""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.read import source as reading
from grasp_deploy.checkpoint.read.source import (
    UNWANTED,
    WANTED,
    ModelSource,
    file_hashes,
    resolve_config,
    resolve_model,
)
from grasp_deploy.checkpoint.write.shards import read_tensor
from grasp_deploy.errors import InputError
from tests.answering import answering
from tests.cli.command import assert_refused, grasp_deploy, succeeded, tree
from tests.tiny import save_tiny

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
FILES = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "model-00001-of-00002.safetensors": b"1",
    "model-00002-of-00002.safetensors": b"2",
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer.model": b"t",
    "tekken.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"c",
    "additional_chat_templates/tool_use.jinja": b"c",
    "LICENSE": b"l",
    "README.md": b"r",
    "plan.grasp": b"p",
    "manifest.json": b"{}",
    "compress_config.json": b"{}",
    "metrics.jsonl": b"{}",
    "quality.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "tokenizer.pkl": b"pickle",
    "training_args.bin": b"pickle",
    "consolidated.safetensors": b"twice",
    "original/consolidated.00.pth": b"pickle",
    "onnx/model.safetensors": b"twice",
    "tokenizer/tokenizer.json": b"another",
    "modeling_evil.py": b"code",
    "tokenizer_evil.py": b"code",
}
CODE_FILES = {"configuration_grasp.py", "modeling_grasp.py"}
FETCHED = set(list(FILES)[:18])
CODE = """
import json, os, sys
from grasp_deploy.checkpoint.read import source
from grasp_deploy.checkpoint.write.shards import read_tensor
from grasp_deploy.errors import InputError
source.PATIENCE_SECONDS = float(os.environ.get("PATIENCE", source.PATIENCE_SECONDS))
name, revision, weights = json.loads(sys.argv[1])
try:
    source = source.resolve_model(name, revision, weights)
    print(json.dumps([source.name, str(source.directory), source.revision]))
except InputError as error:
    print(error, end="", file=sys.stderr)
    sys.exit(2)
"""


@dataclass
class Hub:
    """A hub with one model, "team/model"; `refused` maps a URL path to a status and error code."""

    url: str = ""
    cache: Path = Path()
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)

    def ask(
        self, name: str, revision: str | None = None, weights: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Resolve a name in a new process that knows only this hub."""
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_ENDPOINT": self.url,
            "HF_HUB_CACHE": str(self.cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_TOKEN_PATH": str(self.cache / "no token"),
            **variables,
        }
        command = [sys.executable, "-c", CODE, json.dumps([name, revision, weights])]
        root = Path(__file__).parents[3]
        options: dict[str, Any] = {"env": environment, "cwd": root, "timeout": 300, "check": False}
        return subprocess.run(command, capture_output=True, text=True, **options)

    def refusal(self, name: str, revision: str | None = None, **variables: str) -> str:
        done = self.ask(name, revision, True, **variables)
        assert done.returncode == 2, done
        message = done.stderr.splitlines()[-1]
        assert message.startswith(f"cannot get {name}")
        return message

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if path in self.refused:
            status, code = self.refused[path]
            return status, {"X-Error-Code": code, "X-Error-Message": "no"}, b"{}"
        before, _, last = path.rpartition("/")
        if before == "/api/models/team/model/revision":
            if last not in ("main", "v1"):
                return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
            sha = COMMIT if last == "main" else OTHER
            return 200, {}, json.dumps({"id": "team/model", "sha": sha}).encode()
        if before == "/api/models/team/model/tree":
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": name}
                for name, content in FILES.items()
            ]
            return 200, {}, json.dumps(rows).encode()
        commit, _, name = path.removeprefix("/team/model/resolve/").partition("/")
        if commit in (COMMIT, OTHER) and name in FILES:
            return 200, {"ETag": f'"{name}"', "X-Repo-Commit": commit}, FILES[name]
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(cache=tmp_path / "cache")
    with answering(hub.answer) as hub.url:
        yield hub


def files_of(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)[1])
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder wins over a hub model of the same name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("team/model").mkdir(parents=True)
    assert resolve_model("team/model") == ModelSource("team/model", Path("team/model"), None)
    assert resolve_model("~/team").directory == tmp_path / "team"
    for resolve in (resolve_model, resolve_config):
        with pytest.raises(InputError, match="name of a model is empty"):
            resolve("")  # pathlib's name of the working folder


def test_hashes_are_of_the_weight_files_alone(tmp_path: Path) -> None:
    index = {"metadata": {}, "weight_map": {"x": "b.safetensors", "y": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("b.safetensors", "a.safetensors", "consolidated.safetensors"):
        (tmp_path / name).write_text(name)
    assert list(file_hashes(tmp_path).items()) == [
        (name, hashlib.sha256(name.encode()).hexdigest())
        for name in ("a.safetensors", "b.safetensors")
    ]


def test_weights_and_tokenizer_come_from_the_hub_and_neither_pickles_nor_code(hub: Hub) -> None:
    assert files_of(hub.ask("team/model", weights=False)) == {"config.json"}
    done = hub.ask("team/model")
    assert files_of(done) == FETCHED
    name, folder, revision = json.loads(done.stdout)
    assert (name, Path(folder).name, revision) == ("team/model", COMMIT, COMMIT)
    # From now on the cache serves where the hub does not.
    assert files_of(hub.ask("team/model", HF_ENDPOINT="http://127.0.0.1:9")) == FETCHED


def test_an_unreachable_hub_is_told(hub: Hub) -> None:
    hub.ask("team/model", weights=False)  # the weights are not in the cache
    message = hub.refusal("team/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert "the hub cannot be reached (" in message and "Connection refused" in message
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes calls, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        message = hub.refusal("team/model", HF_ENDPOINT=url, PATIENCE="0.5")
    assert "the hub cannot be reached (" in message and "timed out" in message


def test_a_revision_is_asked_for_by_its_name(hub: Hub) -> None:
    name, folder, revision = json.loads(hub.ask("team/model", "v1", weights=False).stdout)
    assert (name, Path(folder).name, revision) == ("team/model", OTHER, OTHER)
    assert "the hub has no such revision of it" in hub.refusal("team/model", "v9")


@pytest.mark.parametrize(
    ("name", "refused", "words"),
    [
        ("team/absent", {}, "no such model on the hub: check the name, or log in with `hf auth"),
        (
            "team/model",
            {f"/team/model/resolve/{COMMIT}/{name}": (403, "GatedRepo") for name in FILES},
            "accept its terms on https://huggingface.co/team/model, and log in",
        ),
        ("two words", {}, "that is neither a folder here nor a hub id"),
    ],
)
def test_what_the_hub_does_not_give(
    hub: Hub, name: str, refused: dict[str, tuple[int, str]], words: str
) -> None:
    hub.refused = refused
    assert words in hub.refusal(name)


def test_a_pruned_model_of_the_hub(
    demo_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quantize` takes it. Its Python files are not fetched; this release's take their place."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors comes with vLLM")
    snapshot = tmp_path / "snapshots/0123"
    snapshot.mkdir(parents=True)
    names = {path.name for path in demo_checkpoint.iterdir()}
    for name in names:
        if any(fnmatch(name, w) for w in WANTED) and not any(fnmatch(name, u) for u in UNWANTED):
            shutil.copyfile(demo_checkpoint / name, snapshot / name)
    assert names - {path.name for path in snapshot.iterdir()} == CODE_FILES
    monkeypatch.setattr(reading, "_fetch", lambda *_: snapshot)
    for model, folder in (("org/name", "hub"), (demo_checkpoint, "own")):
        succeeded("quantize", model, "--scheme", "int8", "-o", tmp_path / folder)
    assert tree(tmp_path / "hub") == tree(tmp_path / "own")
    (snapshot / "metrics.jsonl").unlink()
    damaged = grasp_deploy("quantize", "org/name", "--scheme", "int8", "-o", tmp_path / "out")
    assert_refused(damaged, "metrics.jsonl")


@pytest.mark.parametrize("other", ["other numbers", "another shape", None])
@pytest.mark.parametrize("command", ["quantize model --scheme int8", "gguf model"])
def test_a_model_that_is_replaced_while_it_is_read_is_not_mixed(
    command: str, other: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "gguf_file" if command.startswith("gguf") else "quantize"
    pytest.importorskip("gguf" if module == "gguf_file" else "compressed_tensors")
    monkeypatch.chdir(tmp_path)
    save_tiny("llama", tmp_path / "model")
    if other:
        width = 32 if other == "another shape" else 64
        save_tiny("llama", tmp_path / "other", seed=1, intermediate_size=width)
    read = []

    def replaced(path: Path, name: str) -> torch.Tensor:
        read.append(name)
        if len(read) == 5:
            Path("model").rename("old")
            if other:
                Path("other").rename("model")
        return read_tensor(path, name)

    monkeypatch.setattr(f"grasp_deploy.checkpoint.write.{module}.read_tensor", replaced)
    ended = grasp_deploy(*command.split(), "-o", "out")
    last = ended.stderr.splitlines()[-1]  # behind what it did until then
    assert ended.code == 2 and last.startswith("error: model/model.safetensors was replaced")
    assert {path.name for path in tmp_path.iterdir()} == {"old", *["model"] * bool(other)}
