"""Reasoning, in the small: what is left of a task worked in steps, by the calibration text.

A model is tuned on sums that are worked digit by digit (`benchmarks.study.arithmetic`), with a
quarter of ordinary text, until it solves most problems that it has not seen. Then it is compressed,
calibrated on a given text, on its own answers to problems of the tuning (its traces), on what it
writes without a prompt, and on halves of these. Each is asked problems held out, greedily: are the
results right, do answers end, how long are they. An existing record is continued; draw it with
`python -m benchmarks.report`.

    python -m benchmarks.reasoning --model ../shared/models/babyllama105 --sequence-length 256 \
        --text ../shared/data/tinystories/train.txt --work tuned \
        --calibration '../shared/data/c4/c4_sample.jsonl@train[:900]' \
        --evaluate stories=../shared/data/tinystories/heldout.txt
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.common.models import NO_OWN, demo_texts
from benchmarks.common.output import (
    check_place,
    check_positive,
    command_of,
    new_parser,
    run_command,
    working_folder,
    write,
)
from benchmarks.study.arithmetic import Problem, problems, result_of
from benchmarks.study.bench import Bench, Variant, loaded
from benchmarks.study.options import (
    add_study_options,
    corpora_of,
    keeps_and_seeds,
    parse_texts,
    settings_of,
)
from benchmarks.study.record import Answers, Row, new_study
from benchmarks.study.rows import check_title, earlier_rows
from benchmarks.study.tables import answer_tables, quality_tables
from benchmarks.train_demo_model import Recipe, train
from benchmarks.train_small_model import documents_of
from grasp_deploy.checkpoint.read.loading import end_tokens, load, load_tokenizer
from grasp_deploy.checkpoint.verify import greedy_tokens
from grasp_deploy.config.compress_config import OWN
from grasp_deploy.data import TextSource
from grasp_deploy.data.tokenizing import tokens
from grasp_deploy.files.disk import write_text
from grasp_deploy.files.outputs import staged_directory
from grasp_deploy.stats.clustered import standard_error

TITLE = "reasoning"
TRACES = "traces"  # the corpus of held-out answers, all steps written
BATCH_ROWS, ROW_TOKENS = 4, 256  # one row is ordinary text
LEARNING_RATE = 2e-3
PROMPTS = 4096  # of the problems that own traces answer
PROMPTS_AT_ONCE = 16
TUNING_SEED, HELDOUT_SEED = 1, 2
SMOKE = {"steps": 2, "problems": 4}


def encoded(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and of its answer, which ends."""
    answer = tokens(tokenizer, problem.answer)
    return tokens(tokenizer, problem.prompt, add_special_tokens=True), [
        *answer,
        tokenizer.eos_token_id,
    ]


def tuning_batches(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], steps: int
) -> Iterator[Tensor]:
    """Yield `(4, 256)` ids: three rows of problems, one of ordinary text."""
    draw, drawn = random.Random(TUNING_SEED), problems(TUNING_SEED, heldout=False)
    ends = [tokenizer.eos_token_id]
    written = [tokens(tokenizer, text, add_special_tokens=True) + ends for text in texts]
    stream = list(itertools.chain.from_iterable(written))
    for _ in range(steps):
        first = draw.randrange(len(stream) - ROW_TOKENS)
        rows = [stream[first : first + ROW_TOKENS]]
        while len(rows) < BATCH_ROWS:
            row: list[int] = []
            while len(row) < ROW_TOKENS:
                row += itertools.chain.from_iterable(encoded(tokenizer, next(drawn)))
            rows.append(row[:ROW_TOKENS])
        yield torch.tensor(rows)


def tune(base: Path, folder: Path, sources: Sequence[TextSource], steps: int) -> None:
    """Tune a model on the task and write it as a folder, which appears whole."""
    torch.manual_seed(TUNING_SEED)
    tokenizer, model = load_tokenizer(base), load(base, dtype="float32")
    recipe = Recipe(math.inf, BATCH_ROWS, LEARNING_RATE, epochs=1, autocast=False)
    batches = tuning_batches(tokenizer, documents_of(sources), steps)
    with staged_directory(folder) as staging:
        train(model, batches, steps, recipe)
        model.eval().save_pretrained(staging)
        tokenizer.save_pretrained(staging)


class ReasoningBench(Bench):
    """Measures models on text, on held-out traces, and on their answers to held-out problems."""

    def __init__(self, options: argparse.Namespace, corpora: Sequence[TextSource]) -> None:
        self.tokenizer = load_tokenizer(options.model)
        drawn = problems(HELDOUT_SEED, heldout=True)
        self.problems = list(dict.fromkeys(itertools.islice(drawn, options.problems)))
        self.encoded = [encoded(self.tokenizer, problem) for problem in self.problems]
        self.most_tokens = 2 * max(len(answer) for _, answer in self.encoded)
        super().__init__(options, corpora)
        self.dense_answers = self.answers(loaded(options.model))

    def perplexities(self, model: PreTrainedModel) -> dict[str, float]:
        """Perplexity by corpus, and on held-out traces: of their answers alone."""
        return {**super().perplexities(model), TRACES: math.exp(self.trace_loss(model))}

    def set_losses(self, row: Row, model: PreTrainedModel) -> None:
        """Measure a model and note its losses and answers in a row."""
        super().set_losses(row, model)
        row.answers = self.answers(model)

    @torch.no_grad()
    def trace_loss(self, model: PreTrainedModel) -> float:
        """Nats per token of the right answers, their ends included."""
        losses = []
        for prompt, answer in self.encoded:
            ids = torch.tensor([prompt + answer], device=model.device)
            logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            losses += cross_entropy(logits, ids[0, len(prompt) :], reduction="none").tolist()
        return statistics.fmean(losses)

    def answers(self, model: PreTrainedModel) -> Answers:
        """The figures of a model's greedy answers."""
        prompts = [prompt for prompt, _ in self.encoded]
        ends = end_tokens(model, self.tokenizer.eos_token_id)
        found = greedy_answers(model, prompts, self.most_tokens, ends)
        ended = [len(answer) < self.most_tokens for answer in found]
        right = [
            has_end and result_of(str(self.tokenizer.decode(answer))) == problem.result
            for has_end, answer, problem in zip(ended, found, self.problems, strict=True)
        ]
        return Answers(
            accuracy=statistics.fmean(right),
            standard_error=standard_error(right),
            ended_share=statistics.fmean(ended),
            mean_tokens=statistics.fmean(map(len, found)),
            right="".join(str(int(one)) for one in right),
            lengths=" ".join(
                str(len(answer)) if has_end else "-"
                for has_end, answer in zip(ended, found, strict=True)
            ),
        )


def greedy_answers(
    model: PreTrainedModel, prompts: Sequence[list[int]], most_tokens: int, ends: set[int]
) -> list[list[int]]:
    """The likeliest tokens before one that ends the answer; one of `most_tokens` has no end.

    Prompts of one length run together, so that none needs padding.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for _, places in itertools.groupby(order, key=lambda place: len(prompts[place])):
        waiting = list(places)
        while waiting:
            now, waiting = waiting[:PROMPTS_AT_ONCE], waiting[PROMPTS_AT_ONCE:]
            written = greedy_tokens(model, torch.tensor([prompts[at] for at in now]), most_tokens)
            for at, answer in zip(now, written, strict=True):
                answers[at] = list(itertools.takewhile(lambda token: token not in ends, answer))
    return answers


def variants_of(texts: Sequence[str], prompts: Path) -> list[Variant]:
    """What to calibrate on; own text takes half where other text stands beside it."""
    traces = f"self:{prompts}"
    calibrations = {
        "text": [*texts, NO_OWN],
        "own traces": [traces],
        "text and own traces": [*texts, traces],
        "text and own text, no prompts": [*texts, OWN],  # the default
        "own text, no prompts": [OWN],
    }
    return [Variant(name, {"calibration": texts}) for name, texts in calibrations.items()]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    add_study_options(parser, keep="0.8,0.6,0.5,0.4")
    parser.add_argument(
        "--text", action="append", metavar="TEXT[@SPLIT]", help="ordinary text to tune on; repeat"
    )
    parser.add_argument("--steps", type=int, default=1500, help="of tuning")
    parser.add_argument("--problems", type=int, default=400, help="held out, to be answered")
    parser.add_argument("--work", type=Path, help="keep the tuned model in this folder")
    options = parser.parse_args(arguments)
    vars(options).update(SMOKE if options.smoke else {})
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    check_positive(options, "steps", "problems")
    check_place(options.output, "study")
    check_title(options.output, TITLE)
    with working_folder("reasoning") as (folder, on_progress):
        settings = settings_of(options, folder)
        shown = {
            **settings,
            "calibration": options.calibration or "the embedded model's",
            "text": options.text or "the embedded model's",
            "steps": options.steps,
            "problems": options.problems,
        }
        texts = parse_texts("--text", options.text or [str(demo_texts(folder)[0])], evaluates=False)
        tuned = (options.work or folder) / f"{options.model.name}-tuned-{options.steps}"
        if not tuned.exists():
            tune(options.model, tuned, texts, options.steps)
        prompts = folder / "prompts.jsonl"
        drawn = itertools.islice(problems(TUNING_SEED, heldout=False), PROMPTS)
        write_text(prompts, "".join(json.dumps({"text": one.prompt}) + "\n" for one in drawn))
        options.model = tuned
        bench = ReasoningBench(options, corpora_of(options, folder))
        study = new_study(
            TITLE, command_of("reasoning", arguments), shown, bench.dense, bench.dense_layers
        )
        study.dense_answers = bench.dense_answers
        study.rows = earlier_rows(options.output, study, {})
        measured = {row.run for row in study.rows}
        settings = {**settings, "model": str(tuned)}
        variants = variants_of(options.calibration or [str(demo_texts(folder)[0])], prompts)
        keeps, seeds = keeps_and_seeds(options)
        for seed, variant, keep in itertools.product(seeds, variants, keeps):
            if (variant.name, keep, seed) not in measured:
                study.rows.append(bench.measure(variant, settings, keep, seed, on_progress))
                write(options.output, study.as_record())
    Console().print(*quality_tables(study), *answer_tables(study))


if __name__ == "__main__":
    run_command(main)
