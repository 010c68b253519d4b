"""What tests of several packages share: the embedded model, a checkpoint made of it, a server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.demo.run import MODEL
from grasp_deploy.demo.text import documents, split

# Threads that wait for each other are slow where the cores are shared, and the models are tiny.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same cases for the same code, so that a failure is the change's; --hypothesis-profile default
# draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start vLLM come first: they take minutes, and the short ones fill the gaps."""
    long = {item.path for item in items if item.get_closest_marker("vllm")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """Commands may change this process's environment for their children: only until they end."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The folder of the dense model inside the package."""
    return MODEL


@pytest.fixture(scope="session")
def demo_text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """JSON lines of documents to calibrate on, and of documents held out."""
    folder = tmp_path_factory.mktemp("text")
    paths = folder / "calibration.jsonl", folder / "heldout.jsonl"
    for path, texts in zip(paths, split(documents()), strict=True):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return paths


@pytest.fixture(scope="session")
def short_config(demo_text: tuple[Path, Path]) -> CompressConfig:
    """A compression of the embedded model that takes seconds."""
    return CompressConfig(
        model=str(MODEL),
        keep=0.6,
        calibration=(str(demo_text[0]),),
        sequences=16,
        sequence_length=128,
        rounds=2,
        epochs=1,
        scale_epochs=1,
        batch_size=4,
    )


@pytest.fixture(scope="session")
def demo_checkpoint(short_config: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pruned checkpoint of the embedded model. Shared: copy it before changing anything."""
    output = tmp_path_factory.mktemp("checkpoint") / "pruned"
    compress(short_config, output)
    return output


@pytest.fixture(scope="module")
def demo_server(demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a real vLLM server of the pruned checkpoint; afterwards nothing is left of it."""
    from grasp_deploy.engine.serve import check_port, running_server

    flags = ["--max-model-len", "512", "--enforce-eager"]
    log = tmp_path_factory.mktemp("server") / "server.log"
    with pytest.raises(KeyboardInterrupt), running_server(demo_checkpoint, flags, log) as url:
        yield url
        raise KeyboardInterrupt
    check_port("127.0.0.1", int(url.rpartition(":")[2]))
    assert subprocess.run(["pgrep", "-f", str(demo_checkpoint)], check=False).returncode == 1
