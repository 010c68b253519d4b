"""Shared by all tests: the embedded model, a checkpoint of it, and a server of that."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before it is imported: no test waits for the hub

import pytest
import torch
from hypothesis import settings

from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.demo.run import MODEL, write_text

# Threads that wait for each other are slow where the cores are shared, and the models are tiny.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same cases for the same code: a failure is the change's. --hypothesis-profile default draws
# new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Give all processes of this run one cache for what vLLM compiles, empty at the start.

    What vLLM knows of model classes is kept between runs: it starts a process for each of them.
    """
    if hasattr(config, "workerinput"):  # a process of pytest-xdist: it has inherited the folder
        return
    folder = tempfile.TemporaryDirectory(prefix="grasp-deploy-vllm-")
    config.add_cleanup(folder.cleanup)
    known = Path.home() / ".cache/vllm/modelinfos"
    known.mkdir(parents=True, exist_ok=True)
    (Path(folder.name) / "modelinfos").symlink_to(known)
    os.environ["VLLM_CACHE_ROOT"] = folder.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files by their slowest tier: the long ones start first, short ones fill the gaps."""
    for item in items:
        if "demo_checkpoint" in getattr(item, "fixturenames", ()):  # it takes 20 seconds to make
            item.add_marker(pytest.mark.slow)
    tiers = {
        name: {item.path for item in items if item.get_closest_marker(name)}
        for name in ("vllm", "slow")
    }
    items.sort(key=lambda item: (item.path not in tiers["vllm"], item.path not in tiers["slow"]))


@pytest.fixture(autouse=True)
def restored_environment() -> Iterator[None]:
    """Undo what a command changes in this process's environment for its children."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


MakeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Call `make_once(name, make)` for a folder that all test processes of this run share.

    The first process calls `make(folder)`, the others wait for it.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def once(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / "shared" / name, shared / "shared" / f"{name}.done"
        folder.parent.mkdir(exist_ok=True)
        with (shared / "shared" / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                done.touch()
        return folder

    return once


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The folder of the dense model inside the package."""
    return MODEL


@pytest.fixture(scope="session")
def demo_text(make_once: MakeOnce) -> tuple[Path, Path]:
    """JSON lines of documents to calibrate on, and of documents held out."""

    def make(folder: Path) -> None:
        folder.mkdir()
        write_text(folder)

    folder = make_once("text", make)
    return folder / "calibration.jsonl", folder / "heldout.jsonl"


@pytest.fixture(scope="session")
def short_config(demo_text: tuple[Path, Path]) -> CompressConfig:
    """Options of a compression of the embedded model that takes seconds."""
    return CompressConfig(
        model=str(MODEL),
        keep=0.6,
        calibration=(str(demo_text[0]), "self=0"),
        sequences=16,
        sequence_length=128,
        rounds=2,
        scale_epochs=1,
        batch_size=4,
    )


@pytest.fixture(scope="session")
def demo_checkpoint(short_config: CompressConfig, make_once: MakeOnce) -> Path:
    """A pruned checkpoint of the embedded model. Shared: copy it before changing anything."""
    return make_once("pruned", lambda folder: compress(short_config, folder))


@pytest.fixture(scope="module")
def demo_server(demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a real vLLM server of the pruned checkpoint; checks that none of it is left."""
    from grasp_deploy.engine.serve import check_port, running_server

    flags = ["--max-model-len", "512", "--enforce-eager"]
    log = tmp_path_factory.mktemp("server") / "server.log"
    with pytest.raises(KeyboardInterrupt), running_server(demo_checkpoint, flags, log) as url:
        port = url.rpartition(":")[2]
        # With the port: another worker's tests may name the same checkpoint meanwhile.
        find = ["pgrep", "-f", f"{demo_checkpoint}.*--port {port}"]
        assert subprocess.run(find, check=False).returncode == 0
        yield url
        raise KeyboardInterrupt
    check_port("127.0.0.1", int(port))
    assert subprocess.run(find, check=False).returncode == 1
