"""What the command line refuses: words before the options, options, and the culprit to be named."""

from pathlib import Path

import torch

from tests.cli.command import SHORT
from tests.tiny import MAGNITUDE

GATE_STEP = Path(__file__).parents[2] / "benchmarks/results/gate_step-ref-llama-7m-cpu.json"
COMPRESS = " ".join(("compress model -o out --keep 0.6 --calibration text.txt", *SHORT))
BUDGET = " ".join(("compress model -o out --calibration text.txt", *SHORT))
DRY = "compress model --dry-run"
LOAD = "--overhead 1MiB --concurrency 8 --context 64"
FIT = f"fit model -o out --gpu-memory 6.8MiB {LOAD}"
OWN = f"--method {MAGNITUDE} --set scale-epochs=0"
EXPORT = "export pruned/plan.grasp --model model -o out"
HEAL = "heal pruned --model model -o out --calibration text.txt"
SYNTHESIZE = "synthesize model -o out --keep 0.6"
KV = "bench kv model --predict-only"
NOT_FOR_FIT = ("--keep", "--weights", "--speedup", "--batch", "--cost", "--tensor-parallel")
THROUGHPUT = "bench throughput model --engine transformers --prompt-tokens 16 --new-tokens 4"
COMPARE = "evaluate compare model pruned --data text.txt --sequence-length 32 --sequences 3"
CARD = "evaluate card pruned --data text.txt --sequence-length 64 --sequences 6"
REPORT = "report kv.json"
BENCHES = (
    "bench kv",
    "bench memory",
    "bench throughput",
    "bench serve",
    "evaluate tasks --tasks piqa",
)
READERS = (
    *("compress adapter -o out --keep 0.6", "verify pruned --model adapter", "serve adapter"),
    *("export pruned/plan.grasp --model adapter -o out", "up adapter --keep 0.6"),
    "heal pruned --model adapter -o out --calibration text.txt",
    *("evaluate compare adapter --data text.txt", "bench kv adapter --gpu-memory 1GiB"),
    *("evaluate card pruned --model adapter --data text.txt", "bench serve adapter"),
    *("evaluate tasks adapter --task-file rows.jsonl", "bench memory adapter"),
    *("bench throughput adapter", "inspect adapter"),
)
# Words before the options; for each row its options, and what the line names if not these.
ROWS: dict[str, dict[str, str]] = {
    # The shell's words.
    "": {
        "inspect": "model",
        "--no": "",
        "--verbose": "no command",
        "evaluate no": "no",
        "inspect m --gpu-memory": "--gpu-memory",
        "up model -o out --keep 0.6 --keeep 0.5": "behind a --",
        "compress -o out --keep 0.6": "names no model",
        "compress ./nowhere -o out --keep 0.6": "./nowhere",
        "compress text.txt -o out --keep 0.6": "text.txt",
        "compress a/b/c -o out --keep 0.6": "a/b/c",
        "compress model/model.safetensors -o out --keep 0.6": "model.safetensors",
        "compress model -o out --keep 0.6 --revision main": "--revision",
        "inspect typo.json": "typo.json",
        "bench kv empty --random-weights --gpu-memory 1GiB": "config.json",
        "evaluate card model --data text.txt": "model",
        "compress pruned -o out --keep 0.6": "pruned",
        "compress no-one/nothing -o out --keep 0.6 --calibration lower.txt=-1": "lower.txt=-1",
        "verify model": "model",
        "verify nowhere": "nowhere",
        "fit nowhere --dry-run --gpu-memory 1GiB --concurrency 1 --context 9": "nowhere",
        "evaluate compare model": "--data",
        "fit odd.json --dry-run --gpu-memory 1GiB --concurrency 1 --context 9": "odd.json",
        "synthesize pruned -o out --keep 0.6": "pruned",
        "heal none -o out": "none",
        "heal model -o out": "model",
        "bench serve -- --enforce-eager": "no model is named",
    },
    # One option at a time, and rules across options.
    COMPRESS: {
        **dict.fromkeys(("--keep 0", "--keep nan", "--device tpu"), ""),
        **dict.fromkeys(("--set rounds=0", "--cost flops", "--batch 8", "--tensor-parallel 4"), ""),
        **dict.fromkeys(("--method flap", "--method absent:f"), ""),
        "--keep 60 --calibration-sequences 0": "--keep 60 & --calibration-sequences 0",
        "--set rounds=1000000000001": "--set rounds",
        "--set targets=heads": "--set targets='heads'",
        "--set targets=ffn --cost kv-bytes": "nothing to prune",
        "--set targets=kv --ffn-multiple 5": "FFN channels (96)",
        "--set rounds": "--set rounds",
        "--set round=4": "rounds",
        "--set keep=0.5": "--keep",
        "--set rounds=many": "--set rounds='many'",
        "--set compensation=maybe": "compensation",
        "--config types.json": "--seed 1.5",
        "--config foreign.json": "foreign.json",
        "--config none.json": "none.json",
        "--weights 9KiB": "--keep & --weights",
        "--cost ''": "--cost",
        "--cost latency --batch 8": "--cost latency",
        "--cost latency --batch 8 --context 3": "--context 3",
        "--cost costs:broken": "costs.py:1 & first line",
        "--cost memory": "--cached-tokens",
        "--cost kv-bytes --ffn-multiple 36": "FFN",
        f"{OWN} --set temperature=1": "temperature",
        f"{OWN} --set learning-rate=0.1": "learning-rate",
        f"{OWN} --set rounds=3": "rounds=3",
        "--set compensation=false --set ridge=0.1": "ridge",
        **({} if torch.cuda.is_available() else {"--device cuda": ""}),
        "--sequence-length 513": "--sequence-length",
        "--calibration absent.txt": "absent.txt",
        "--calibration short.txt": "short.txt",
        "--calibration circle": "circle",
        "--calibration rows.jsonl": "--calibration-column",
        "--calibration self:rows.jsonl": "--calibration-column",
        "--gpu-memory 9GiB": "--keep & --gpu-memory",
        "--concurrency 8": "--concurrency",
        "--kv-dtype fp8": "--kv-dtype",
        "--keep 0.001": "--keep",
        # Places that cannot be written.
        "-o empty": "empty",
        "-o link": "link",
        "-o text.txt/out": "text.txt",
        "-o /proc/out": "/proc/out",
        f"-o {'x' * 300}": "too long",
        "-o pruned/deep/out": "pruned",
        "-o link --overwrite": "link",
        "-o model --overwrite": "model",
        "-o text.txt --overwrite": "text.txt",
        **{f"-o . --overwrite{more}": "name a folder" for more in ("", " --resume")},
        "-o mine --overwrite": "mine.partial",
        "-o mine --resume": "mine.partial/thesis.txt was not created by grasp-deploy: move it,",
        "-o copy --overwrite": "copy.partial",
        "-o file": ".file.lock",
        "-o other": ".other.lock",
        "-o begun": ".begun.incomplete",
        "-o folder": ".folder.incomplete",
        "-o busy": "busy",
        "--keep 0.8,0.6 -o model": "the output model",
        # Several budgets, and a bound on the loss.
        "--keep 0.8,0.8": "--keep '0.8,0.8' names a number twice",
        "--keep 0.5,": "--keep '0.5,': '' & a number above 0 up to 1 & commas",
        "--keep 0.5,80": "'80' is not a number above 0",
        "--keep 0.5,0.4 --weights 9MiB": "one budget & --keep and --weights",
        "--keep 0.5,0.4 --method m:f": "need pruning in rounds & drop --method m:f",
        "--keep 0.5,0.0001": "under the floor & the smallest possible is --keep 0.",
        "--keep 0.5,0.4 --max-loss 0.1": "a family has no bound",
        "--set bound-step=0.1": "bound-step=0.1 has no effect",
    },
    BUDGET: {
        "": "--keep",
        "--config text.json": "--keep '0.6'",
        "--weights much": "--weights 'much'",
        "--weights 9KiB --cost memory --cached-tokens 1": "--cost",
        "--kv-per-token 1KiB --set targets=ffn": "targets=ffn",
        **dict.fromkeys(("--weights 1GiB", "--kv-per-token 1MiB"), ""),
        "--max-loss 0": "--max-loss 0 is not allowed & above 0 up to 100",
        "--max-loss 1 --method m:f": "need pruning in rounds",
        "--max-loss 1 --calibration self=0": "two held-out sequences",
        "--speedup 2": "--context",
        "--speedup 2 --batch 1 --context 9 --cost parameters": "--speedup",
        "--speedup 2 --batch 1 --context 9 --tensor-parallel 2": "--speedup times one GPU",
        f"{LOAD} --gpu-memory 9GiB": "9GiB",
        f"{LOAD} --gpu-memory 6.8MiB --context 513": "--context 513",
    },
    DRY: {
        "": "--keep",
        "--keep 0.6 --gpu-memory much": "--gpu-memory 'much'",
        f"--gpu-memory 6MiB {LOAD} --keep 0.5": "--keep & --gpu-memory",
        f"--gpu-memory 6MiB {LOAD} --cost kv-bytes": "--cost",
        f"--gpu-memory 6MiB {LOAD} --cached-tokens 9": "--cached-tokens",
        f"--gpu-memory 6MiB {LOAD} --tensor-parallel 2": "--tensor-parallel",
        "--max-loss 0.1": "give --keep",
        "--keep 0.6 --sequence-length 5000": "--sequence-length",
    },
    "compress model": {"--keep 0.6": "--output", "-o na\udcffme --keep 0.5": "na\\udcffme"},
    FIT: {
        "--gpu-memory much": "--gpu-memory 'much'",
        "--gpu-memory -1GiB": "--gpu-memory '-1GiB'",
        "--gpu-memory 5MiB": "--gpu-memory",
        "--overhead some": "--overhead 'some'",
        "--concurrency 2.5": "--concurrency '2.5'",
        **dict.fromkeys(("--concurrency 0", "--context 513", "--gpu-memory-utilization 90"), ""),
        "--kv-dtype int4": "--kv-dtype 'int4'",
        **{f"{name} 2": f"No such option: {name}" for name in NOT_FOR_FIT},
    },
    "fit model": {
        f"--gpu-memory 6MiB {LOAD}": "--output",
        "--dry-run": "fit wants a deployment",
        f"{LOAD} --dry-run": "--gpu-memory",
        "--gpu-memory 1GiB --dry-run": "--concurrency & --context",
    },
    "inspect model": {name: name for name in ("--gpu-memory 'lots'", "--gpu-memory ''")},
    "verify pruned": {"--engine onnx": "'onnx'", "--without-base --model model": "--model"},
    EXPORT: {
        "--base-model-id 'a b'": "--base-model-id 'a b'",
        "-o web --overwrite": "manifest.json",
        "-o noted --overwrite": "notes.txt",
        "-o busy": "busy",
        "--model other-shape": "the plan was made for",
    },
    "export --model model -o out": {
        **{f"{name}.safetensors": name for name in ("nowhere", "short", "new", "over")},
        "text.txt": "",
        "model/model.safetensors": "model.safetensors",
    },
    HEAL: {
        "--recover 0": "--recover '0'",
        "--recover 2X": "--recover '2X'",
        "--calibration-sequences 1 --calibration self=0": "--calibration-sequences",
        "--calibration none.txt": "none.txt",
        "--model same-shape": "the plan was made for",
    },
    SYNTHESIZE: {
        "--cost latency": "measures no times",
        "-o model": "model",
        "--keep 0.01": "--keep",
        "--keep 0.8,0.6": "--keep '0.8,0.6' is not allowed",
        "--targets x": "--targets 'x'",
        "--kv-keep 1.1": "--kv-keep",
        "--kv-keep 0.1": "--kv-keep",
        "--keep 0.3 --kv-keep 1": "--kv-keep",
        "--keep 0.9 --kv-keep 0.3": "--kv-keep",
        "--kv-keep 1 --targets kv": "--kv-keep",
        "--kv-keep 1 --cost kv-bytes": "--kv-keep",
    },
    KV: {
        "--gpu-memory 1KiB": "--gpu-memory",
        "--gpu-memory 1GiB --context 513": "--context",
        "-o na\udcffme": "na\\udcffme",
    },
    THROUGHPUT: {
        "--batch 1,x": "--batch '1,x'",
        "--prompt-tokens 600": "512 positions",
        "--kv-memory 1GiB": "--kv-memory",
    },
    "bench serve model": {
        "--concurrency 1 --request-rate 1": "two kinds of load",
        "--slo-ttft-ms inf --slo-e2e-ms -1": "--slo-ttft-ms inf & --slo-e2e-ms -1",
        "--slo-tpot-ms nan": "--slo-tpot-ms nan",
        "--prompt-tokens 500 --new-tokens 13": "512 positions",
        "--concurrency 0": "--concurrency '0'",
    },
    "bench memory model --device cpu": {"--prompt-tokens 1024": "--prompt-tokens"},
    "bench memory odd-positions.json --random-weights": {"": "max_position_embeddings"},
    **{
        f"{bench} model": {f"-o {name}": name for name in ("study.json", "text.txt", "pipe")}
        for bench in BENCHES
    },
    COMPARE: {
        "--sequences 1000": "text.txt & (140)",
        "--data text.txt": "two corpora text.txt",
        "--data none.txt": "none.txt",
        "--sequence-length 513": "--sequence-length 513 & 512 positions",
        "-o text.txt": "--output text.txt",
        "--dtype int3": "--dtype 'int3'",
    },
    CARD: {
        "--data text.txt@test": "two corpora text.txt",
        "--record none.json": "none.json",
        "--record text.txt": "text.txt",
        "--record study.json": "a record of study",
        "--model same-shape": "the plan was made for",
        "--sequence-length 513": "--sequence-length 513 & 512 positions",
        "--device tpu": "",
    },
    # What a folder holds.
    **{command: {"": "adapter_config.json"} for command in READERS},
    COMPRESS.replace("compress", "up"): {
        "-- -tp 2": "--tensor-parallel 2",
        "-- --max-model-len 600": "512 positions",
        "-- -pp 100": "100 pipeline stages",
        "-- --enable-expert-parallel": "no experts",
        "--keep 0.8,0.6": "up serves one model & names 2 budgets & with compress",
        "-o pruned": "--overwrite",
    },
    # Before a model is fetched.
    "quantize no-one/x --scheme int8 -o model": {"": "output model", "--shard-size 1X": "'1X'"},
    "gguf no-one/x": {"-o text.txt": "--output text.txt exists"},
    # Records, and what is drawn of them.
    "report": {
        **{f"{name}.json": name for name in ("cut", "plain", "later", "bare", "mixed")},
        "bytes.json": "",
        "missing.json": "",
        ".": "cannot be read",
        "kv.json ./kv.json": "twice",
        str(GATE_STEP): "benchmarks.report",
    },
    REPORT: {
        "--html kv.json": "--html kv.json",
        "--html notes.html": "",
        "--html .": "",
        "--html notes.html/page.html": "notes.html",
        f"--html {'y' * 252}": "too long",
        "--html pruned/page.html": "pruned/page.html",
        "--png pruned/figures": "pruned/figures",
        "--png kv.json": "",
        "--png /proc/figures": "/proc/figures",
        "--png drawn": "drawn/kv-kv-capacity.png",
    },
}
CASES = [
    (f"{command} {options}".strip(), culprit or options)
    for command, rows in ROWS.items()
    for options, culprit in rows.items()
]
