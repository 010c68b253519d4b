"""A pruned copy as the draft of its dense model, by vLLM's own speculative decoding.

Dense model, draft, and dense model that checks K drafted tokens a step take turns. All prompts
first, many at a time: what is accepted, and where tokens part, how many nats the dense model's own
are ahead. Then one at a time: the speed over the dense model's, and at most, with a chance `a` for
the first token and `c` of the dense model's time for the draft, (1 - a^(K+1)) / ((1 - a)(K c + 1)).

    python -m benchmarks.drafts --model build/models/smollm2-135m --draft smaller --data c4
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import output
from benchmarks.common.models import MODEL
from benchmarks.common.tables import record_table
from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.cli.console import stdout
from grasp_deploy.data import evaluation_source, read_blocks
from grasp_deploy.engine.child import answer_requests, child
from grasp_deploy.engine.flags import FORMAT
from grasp_deploy.engine.vllm_process import vllm_child_environment

AT_ONCE, CACHE_BYTES = 16, 2**27  # prompts of a batch; of each engine
OPTIONS = {"model": str(MODEL), "draft": str(MODEL), "data": __file__, "dtype": "bfloat16"}
SIZES = {"prompts": 200, "timed": 4, "prompt-tokens": 64, "new-tokens": 32, "rounds": 5, "most": 6}
loaded: list[Any] = []  # the engine of a child


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Start the engine, by the first request; then continue prompts, `step` at a time."""
    from vllm import LLM, SamplingParams

    if not loaded:
        loaded.append(LLM(**request))
        return {}
    prompts, step = [{"prompt_token_ids": ids} for ids in request["prompts"]], request["step"]
    greedy = SamplingParams(**request["greedy"], temperature=0, ignore_eos=True, logprobs=2)
    parts = [prompts[i : i + step] for i in range(0, len(prompts), step)]
    clock = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter
    began = clock()  # of one thread the processor's time, which other work leaves as it is
    made = [each for part in parts for each in loaded[0].generate(part, greedy, use_tqdm=False)]
    texts = [each.outputs[0] for each in made]
    found = {metric.name.split("num_")[-1]: metric for metric in loaded[0].get_metrics()}
    return {
        "seconds": clock() - began,
        "tokens": [list(text.token_ids) for text in texts],
        "likely": [[sorted(t.logprob for t in of.values()) for of in x.logprobs] for x in texts],
        "steps": found["drafts"].value if "drafts" in found else 0,
        "accepted": getattr(found.get("accepted_tokens_per_pos"), "values", []),
    }


def answers(prompts: list[list[int]], options: argparse.Namespace) -> dict[str, Any]:
    """What each engine answers, and its seconds in each round."""
    base = {**FORMAT, "dtype": options.dtype, "skip_tokenizer_init": True, "enforce_eager": True}
    base |= {"max_num_seqs": AT_ONCE, "kv_cache_memory_bytes": CACHE_BYTES}
    base |= {"max_model_len": len(prompts[0]) + options.new_tokens + 16, "disable_log_stats": False}
    greedy = {"max_tokens": options.new_tokens, "detokenize": False}
    engines: dict[str, Any] = {"dense": {"model": options.model}, "draft": {"model": options.draft}}
    for k in range(1, options.most + 1):
        spec = {"method": "draft_model", **engines["draft"], "num_speculative_tokens": k}
        engines[str(k)] = {"model": options.model, "speculative_config": spec}
    own = {**vllm_child_environment(), "PYTHONPATH": str(output.FOLDER.parent)}
    with ExitStack() as stack:
        ask = {k: stack.enter_context(child("benchmarks.drafts", own, name=k)) for k in engines}
        for name, engine in engines.items():
            ask[name](base | engine)
        asked = {"prompts": prompts, "greedy": greedy, "step": AT_ONCE}
        rows = {name: ask[name](asked) | {"seconds": []} for name in engines}
        asked |= {"prompts": prompts[: options.timed], "step": 1}
        for name in options.rounds * [*rows]:
            rows[name]["seconds"].append(ask[name](asked)["seconds"])
    return rows


def figures(row: dict[str, Any], rows: dict[str, Any]) -> dict[str, Any]:
    """A row without its tokens, beside those of the dense model and of the draft alone."""
    dense, draft = rows["dense"], rows["draft"]["seconds"]
    speed = median(a / b for a, b in zip(dense["seconds"], row["seconds"], strict=True))
    cost = median(b / a for a, b in zip(dense["seconds"], draft, strict=True))
    places = [count / row["steps"] for count in row["accepted"]]
    texts = zip(row["tokens"], dense["tokens"], dense["likely"], strict=True)
    apart = [[b[-1] - b[-2] for x, y, b in zip(*t, strict=True) if x != y] for t in texts]
    gaps = [each[0] for each in apart if each]
    made = {"seconds": row["seconds"], "speed": speed, "gaps_where_parted": gaps}
    if places:
        chances = sum(places[0] ** i for i in range(len(places) + 1))
        made |= {"at_most": chances / (len(places) * cost + 1), "accepted_by_place": places}
    return made | {"tokens_per_step": 1 + sum(places)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    for name, default in {**OPTIONS, **SIZES}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = output.parsed(parser, arguments, "drafts", "K = 1 alone, in a minute")
    if options.smoke:
        options.prompts, options.timed, options.rounds, options.most = 4, 1, 1, 1
    tokenizer, text = load_tokenizer(Path(options.model)), evaluation_source(options.data)
    blocks = read_blocks(tokenizer, text, options.prompt_tokens, options.prompts)
    rows = answers(blocks.token_ids.tolist(), options)
    made = {name: figures(row, rows) for name, row in rows.items()}
    settings = {name: getattr(options, name.replace("-", "_")) for name in (*OPTIONS, *SIZES)}
    record = output.new_record("drafts", arguments, settings, engines=made)
    stdout.print(record_table(record))
    output.write(options.output, record)


if __name__ == "__main__":
    is_child = sys.argv[1:] and sys.argv[1].isdecimal()  # it is given a pipe's number
    answer_requests(answer) if is_child else output.run_command(main)
