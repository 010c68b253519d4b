"""The folder that every run starts from: models, texts, records, half a run."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from peft import LoraConfig, get_peft_model
from pyarrow import Table, parquet

from grasp_deploy.cli import main
from tests.bench.records import kv_record, memory_record, model, serve_record, throughput_record
from tests.evaluate.tasks.task_records import task_record
from tests.evaluate.tasks.tiny_tasks import write_items
from tests.tiny import save_tiny

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "head_dim": 32,  # the least that vLLM takes on a CPU
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
LEARNING = ("--set=rounds=1", "--device=cpu")
SHORT = ("4", "--sequence-length", "16", "--device", "cpu")
TEXTS = ("text.txt", "rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "chats.jsonl")
RECORDS = tuple(f"{kind}.json" for kind in ("throughput", "memory", "kv", "serve", "tasks"))
# Commands by name; `out` is what they write. {text} is one of the texts.
COMMANDS = {
    name: command.split()
    for name, command in {
        "compress": "compress model -o out --keep 0.6 --calibration {text}",
        "text": "compress model -o out --keep 0.6 --calibration text.txt",
        "grasp": "compress model -o out --keep 0.6 --calibration {text} --method grasp",
        "resume": "compress model -o half --keep 0.6 --calibration text.txt --resume",
        "replace": "compress model -o pruned --keep 0.7 --calibration text.txt --overwrite",
        "config": "compress model -o out --config pruned/compress_config.json",
        "inspect": "inspect model --tensor-parallel 2 --gpu-memory 1GiB",
        "inspect-pruned": "inspect pruned",
        "verify": "verify pruned --device cpu",
        "verify-alone": "verify pruned --without-base",
        "export": "export pruned/plan.grasp --model model -o out",
        "heal": "heal pruned -o out --calibration {text} --recover 2k",
        "adapter": "adapter adapter --plan pruned -o out",
        "quantize": "quantize model -o out --scheme int8",
        "quantize-pruned": "quantize pruned -o out --scheme fp8",
        "gguf": "gguf pruned -o new.gguf --type q8_0",
        "compare": "evaluate compare model pruned --data {text}",
        "compare-pruned": "evaluate compare pruned --data {text}",
        "card": "evaluate card pruned --data {text}",
        "card-record": "evaluate card pruned --data {text} --record tasks.json",
        "tasks": "evaluate tasks model pruned --task-file items.jsonl --device cpu -o new.json",
        "synthesize": "synthesize model -o out --keep 0.6",
        "kv": "bench kv model pruned --predict-only -o new.json",
        "report": "report {record}",
        "page": "report {record} --html page.html --png figures",
        "serve": "serve model",
        "serve-pruned": "serve pruned",
    }.items()
}
NEED_LENGTHS = ("compress", "heal", "evaluate compare", "evaluate card")


def command_line(name: str, draw: Random, damaged: str = "") -> list[str]:
    """The arguments of a command, with the damaged text or record, or another one drawn."""
    drawn = {
        kind: damaged if damaged in names else draw.choice(names)
        for kind, names in (("text", TEXTS), ("record", RECORDS))
    }
    arguments = [word.format(**drawn) for word in COMMANDS[name]]
    if name != "config" and " ".join(arguments).startswith(NEED_LENGTHS):
        of_calibration = "calibration-" * (arguments[0] == "compress")
        arguments += [f"--{of_calibration}sequences", *SHORT]
    if arguments[0] == "compress" and name != "config":
        arguments += LEARNING
    if draw.random() < 0.2 and arguments[0] != "serve":
        arguments.append("--json")
    return arguments


def make_world(folder: Path) -> None:
    """Fill a folder, which is the current one; it takes some seconds."""
    dense = save_tiny("llama", folder / "model", **SIZES)
    (folder / "model/model.safetensors").unlink()
    dense.save_pretrained(folder / "model", max_shard_size="10KB")  # with an index
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    _write_texts(folder)
    models = [model("dense", num_hidden_layers=3), model("pruned", 0.5, num_hidden_layers=3)]
    for make in (throughput_record, memory_record, kv_record, serve_record):
        record = make(models)
        (folder / f"{record['benchmark']}.json").write_text(json.dumps(record))
    (folder / "tasks.json").write_text(json.dumps(task_record()))
    shutil.move(write_items(folder)["query"], folder / "items.jsonl")
    resumed = command_line("resume", Random(1))
    start = [word for word in resumed if word != "--resume"]
    run_command([*start[:3], "pruned", *start[4:]])
    with patch("grasp_deploy.compression.compress.write_checkpoint", side_effect=KeyboardInterrupt):
        run_command(start)
    lora = LoraConfig(
        r=2, target_modules=["q_proj", "o_proj", "down_proj"], rank_pattern={"q_proj": 3}
    )
    get_peft_model(dense, lora).save_pretrained(f"{folder}/adapter")
    assert (folder / "pruned/plan.grasp").exists() and (folder / "half.partial").exists()


def run_command(arguments: list[str]) -> int:
    """Run the command line in this process, as from a shell; returns its exit code."""
    with patch("sys.argv", ["grasp-deploy", *arguments]):
        try:
            main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 1
    return 0


def _write_texts(folder: Path) -> None:
    sentence = "The quick brown fox jumps over the lazy dog {}. "
    texts = [sentence.format(index) * 3 for index in range(12)]
    (folder / "text.txt").write_text("\n".join(texts))
    rows = [{"text": text, "n": index} for index, text in enumerate(texts)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "rows.csv").write_text(
        "n,text\n" + "".join(f'{r["n"]},"{r["text"]}"\n' for r in rows)
    )
    parquet.write_table(Table.from_pylist(rows), folder / "rows.parquet")
    chats = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
