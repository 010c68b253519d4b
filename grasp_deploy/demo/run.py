"""The demo: from a dense model to an answer over HTTP, without a download."""

import json
import shutil
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.limits import installed_platform
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import TextSource, read_blocks
from grasp_deploy.demo.text import documents, split
from grasp_deploy.engine.serve import running_server
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.perplexity import perplexity
from grasp_deploy.files.disk import readable_disk_errors
from grasp_deploy.files.progress import OnProgress

MODEL = Path(__file__).with_name("model")
PROMPT = "Return a new list containing"
KEEP = 0.6
BLOCK_TOKENS = 256
RECOVER_TOKENS = 32_000
HELDOUT_BLOCKS = 40


def run_demo(
    on_progress: OnProgress, say: Callable[[str], None], kept: Path | None = None
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Compress the embedded model, verify it, serve it, ask it something, and shut it down.

    Returns the footprint with held-out perplexity of the dense and of the pruned model, and a
    completion of PROMPT. `say` takes a line before each part. The new folder `kept` keeps texts and
    checkpoint. Raises InputError if it exists, vLLM is missing or a part fails.
    """
    installed_platform()  # raises before minutes of work
    with _folder(kept) as work:
        calibration, heldout = write_text(work)
        output = work / "pruned"
        say(f"1/4  compress the embedded model to {KEEP:.0%} of its prunable cost, and recover it")
        config = CompressConfig(
            model=str(MODEL),
            keep=KEEP,
            calibration=(str(calibration),),
            sequences=128,
            sequence_length=BLOCK_TOKENS,
            rounds=3,
            scale_epochs=1,
            batch_size=2,
            recover=RECOVER_TOKENS,
        )
        compress(config, RunOptions(output, on_progress=on_progress))
        say("2/4  measure perplexity on text that neither model was trained or calibrated on")
        dense, pruned = (_measure(directory, heldout) for directory in (MODEL, output))
        say("3/4  verify that the checkpoint is the model that was measured")
        for check in verify(output):
            say(f"     {check.name}: {check.detail}")
            if not check.ok:
                raise InputError(f"the demo's checkpoint failed its verification: {check.detail}")
        say("4/4  serve it with vLLM and ask for a completion over HTTP (the start takes a while)")
        flags = ["--max-model-len", "512", "--enforce-eager"]  # eager: needs no g++
        with running_server(output, flags, work / "server.log") as url:
            say(f"     it answers on {url}")
            completion = _completion(url, str(output))
        say("     the server is shut down")
    return dense, pruned, completion


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """A folder to work in: a temporary one, or a new one that goes only where the block fails."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="grasp-deploy-demo-") as folder:
            yield Path(folder)
        return
    with readable_disk_errors(kept):
        if kept.exists():
            raise InputError(f"the output {kept} exists: name a new folder")
        kept.mkdir(parents=True)
    try:
        yield kept
    except BaseException:
        shutil.rmtree(kept, ignore_errors=True)
        raise


def _completion(url: str, model: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is local
    body = {"model": model, "prompt": PROMPT, "max_tokens": 32, "temperature": 0}
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", data, headers)
    with opener.open(request) as response:
        return json.load(response)["choices"][0]["text"]


def write_text(folder: Path) -> tuple[Path, Path]:
    """Calibration and held-out documents as JSON lines."""
    paths = folder / "calibration.jsonl", folder / "heldout.jsonl"
    for path, texts in zip(paths, split(documents()), strict=True):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return paths


def _measure(directory: Path, heldout: Path) -> dict[str, Any]:
    tokenizer = load_tokenizer(directory)
    blocks = read_blocks(tokenizer, TextSource(str(heldout)), BLOCK_TOKENS, HELDOUT_BLOCKS)
    measured = perplexity(load(directory, device="cpu"), blocks)
    record = footprint(model_shape(read_config(directory))).as_dict()
    return {**record, "perplexity": measured.perplexity}
