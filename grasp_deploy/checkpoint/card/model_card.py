"""The model card of a pruned checkpoint, from its plan and from what was measured of it.

`renew_card` adds a record of quality to a finished checkpoint, with a new card and manifest.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from grasp_deploy.checkpoint.card.quality_verdict import BROKEN, NEEDS_HEALING, excess_loss, few
from grasp_deploy.checkpoint.format.shapes import ModelShape, dense_shape
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_pruned, load_plan
from grasp_deploy.checkpoint.read.validate import read_folder
from grasp_deploy.data.source import TextSource, display_name
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of, read_text, readable_disk_errors, sync, write_files
from grasp_deploy.files.json_files import as_json, read_json, typed
from grasp_deploy.files.outputs import MANIFEST_FILE, changed_files, lock_of, locked, manifest_of
from grasp_deploy.pruning.units import UnitTable
from grasp_deploy.stats.wording import amount, listed, percent, plus_minus, quoted

RENEWED = QUALITY_FILE, CARD_FILE = "quality.json", "README.md"
MARK = "†"
MARK_MEANS = f"{MARK} The model learnt from this corpus, or a part of it: it does not count."
ERRORS_ARE = "±: one standard error; of what was lost, paired by sequence and by item."
MOST_SAID = 500  # characters repeated of a verdict, which may be a stranger's
CORPUS_HEAD = ("perplexity on", "tokens", "dense", "pruned", "lost, nats per token")
MODELS = ("dense", "pruned")
TASK_HEAD = ("accuracy, %, on", "items", "chance", *MODELS, "change")
FROM_BASE = ("license", "license_name", "license_link", "language", "tags", "quantised_by")
OWN_TAGS = ("pruned", "grasp-deploy", "vllm")
HEAD = re.compile(r"\s*---\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
METHODS = {
    "grasp": "learnt gates on the frozen model, from a cut in rounds",
    "progressive": "a cut in rounds by the optimal brain surgeon's loss",
}
COMPENSATION = (
    " Compensation: the kept columns of the output layers were solved by least squares for the "
    "dense model's hidden states."
)
ADVICE = "Other text may lose more: measure yours with `grasp-deploy evaluate compare`."

_TEMPLATES = Environment(  # Markdown: nothing is escaped but the bars of table cells
    loader=PackageLoader(__package__, "."),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {"quoted": quoted, "amount": amount}


def model_card(
    plan: Plan,
    dense: ModelShape,
    pruned: ModelShape,
    quality: Mapping[str, Any] | None = None,
    *,
    from_base: Mapping[str, Any],
) -> str:
    """README.md of the checkpoint; `quality` is the record of `evaluate card`, if it was made.

    `from_base` is what the base model's card states of itself, by `card_metadata`. Its
    `quantised_by` counts where the weights are quantised: the scheme, and what taught its rounding.
    """
    provenance, is_plain = plan.provenance, pruned.quantization is None
    from_base = {k: v for k, v in from_base.items() if not (is_plain and k == "quantised_by")}
    return _TEMPLATES.get_template("model_card.md.jinja").render(
        metadata=metadata_block(plan, from_base),
        base=model_name(provenance),
        base_option=_base_option(provenance),
        release=provenance["versions"]["grasp_deploy"],
        figures=_figures(plan, dense, pruned),
        chosen=how_units_were_chosen(plan, dense),
        learnt_from=what_it_learnt_from(provenance),
        fitted=plan.fitted,
        is_hybrid=pruned.family.is_hybrid,
        quantization=pruned.quantization and from_base.get("quantised_by", pruned.quantization),
        quality=quality,
        corpus_head=CORPUS_HEAD,
        corpus_cells=corpus_cells,
        mark_means=MARK_MEANS,
        task_head=TASK_HEAD,
        task_cells=task_cells,
        errors_are=ERRORS_ARE,
    )


def _figures(plan: Plan, dense: ModelShape, pruned: ModelShape) -> list[tuple[str, float, float]]:
    """Rows of the table of sizes: name, dense figure, pruned figure."""
    budget, mib = plan.provenance["budget"], 2**20
    costs = f"prunable cost ({quoted(plan.provenance['cost_model'].replace('|', ' '))})"
    return [
        ("parameters", dense.parameters, pruned.parameters),
        ("weights, MiB", round(dense.weight_bytes / mib, 2), round(pruned.weight_bytes / mib, 2)),
        ("KV cache, bytes per token", dense.kv_bytes_per_token(), pruned.kv_bytes_per_token()),
        (costs, budget["total_cost"], budget["kept_cost"]),
    ]


def model_name(provenance: dict[str, Any]) -> str:
    """Hub id of the base model, or the name of its folder, in one line; paths stay private."""
    name = provenance["model"]
    return " ".join((name if provenance["revision"] else Path(name).resolve().name).split())


def _base_option(provenance: dict[str, Any]) -> str:
    """The base model as a command takes it: its hub id, or a folder that the reader has."""
    name = model_name(provenance)
    if not provenance["revision"]:
        name = provenance["config"].get("base_model_id") or f"PATH/TO/{name}"
    return shlex.quote(name)


def card_metadata(directory: Path) -> dict[str, Any]:
    """Licence, language and tags in a folder's README.md; empty where it states none.

    Scalars are read as text, so that the language `no` is not false. Other values are left out.
    """
    try:
        head = HEAD.match(read_text(directory / "README.md", "utf-8-sig"))
        stated = yaml.load(head[1], Loader=yaml.BaseLoader) if head else None  # all scalars as str
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    if not isinstance(stated, dict):
        return {}
    return {key: stated[key] for key in FROM_BASE if _is_text(stated.get(key))}


def metadata_block(plan: Plan, from_base: Mapping[str, Any]) -> str:
    """The card's YAML front matter: what the base model's card states, and what the plan knows."""
    provenance = plan.provenance
    tags = from_base.get("tags", [])
    tags = [tags] if isinstance(tags, str) else tags
    stated = {
        "base_model": provenance["config"].get("base_model_id")
        or (model_name(provenance) if provenance["revision"] else None),
        **{key: from_base[key] for key in FROM_BASE if key in from_base and key != "tags"},
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys([*OWN_TAGS, *tags])),
    }
    given = {key: value for key, value in stated.items() if value}
    return yaml.safe_dump(given, sort_keys=False, allow_unicode=True)


def _is_text(value: Any) -> bool:
    return all(isinstance(item, str) for item in (value if isinstance(value, list) else [value]))


def how_units_were_chosen(plan: Plan, dense: ModelShape) -> str:
    """The method that chose the units, and whether kept columns were solved."""
    provenance = plan.provenance
    config, healed = provenance["config"], provenance.get("healing")
    names = ("experts" if dense.experts_per_token else "FFN channels", "KV-head groups")
    shares = UnitTable.of_layers(plan.dense_layers).kept_shares(plan.mask)
    units = " and ".join(n for n, kept in zip(names, shares, strict=True) if kept < 1) or "Units"
    chosen = METHODS.get(config["method"], f"the scores of {quoted(config['method'])}, at once")
    solved = provenance.get("compensation") or (plan.fitted and not healed)
    return f"{units} were chosen by {chosen}, under one global budget.{COMPENSATION * bool(solved)}"


def what_it_learnt_from(provenance: Mapping[str, Any]) -> str:
    """Text of calibration and recovery, and the held-out loss on it."""
    computed = f" in {provenance['computed_in']}" if provenance.get("computed_in") else ""
    calibration, losses = provenance["calibration"], provenance["losses"]
    text = f"Calibrated{computed} on {_sequences(calibration)}."
    if losses["heldout_pruned"] is not None:
        # The loss of a sequence is that of all tokens but its first.
        tokens = calibration.get("heldout_sequences", 0) * (calibration["sequence_length"] - 1)
        text += (
            f" On {tokens:,} held-out tokens the loss went from {losses['heldout_dense']:.4f} to "
            f"{losses['heldout_pruned']:.4f} nats per token{few(tokens)}."
        )
    healed = [
        f"Recovered by the dense model's predictions on {healing['tokens']:,} tokens: "
        f"{_sequences(healing['text'])}, counted each time that they were read. On text that "
        "this recovery held out the divergence from the dense model went from "
        f"{healing['divergence_before']:.4f} to {healing['divergence_after']:.4f} nats per token, "
        f"and the loss to {healing['loss_after']:.4f}."
        for healing in provenance.get("healing", [])
    ]
    return " ".join([text, *healed, ADVICE])


def _sequences(text: Mapping[str, Any]) -> str:
    """Number, length and corpora of a text; files without their folders."""
    parts = text.get("parts") or [text]
    corpora = [f"{_corpus(part['source'])} ({part['sequences']:,})" for part in parts]
    sources = listed(corpora if len(parts) > 1 else [_corpus(parts[0]["source"])])
    return f"{text['sequences']:,} sequences of {text['sequence_length']:,} tokens of {sources}"


def _corpus(source: str) -> str:
    text = TextSource(source)
    if text.prompts:
        return f"the model's own text, which answers {_corpus(text.prompts.what)}"
    if text.is_own:
        return "the model's own text"
    return quoted(display_name(source))


def corpus_cells(row: Mapping[str, Any]) -> list[str]:
    """One row of the table under `CORPUS_HEAD`."""
    before, after = row["dense"]["perplexity"], row["pruned"]["perplexity"]
    split = f" ({row['split']})" if row["split"] else ""
    return [
        f"{row['name']}{split}{MARK * row['calibrated_on']}",
        f"{row['tokens']:,} in sequences of {row['sequence_length']:,}",
        f"{before:,.2f}",
        f"{after:,.2f}",
        plus_minus(excess_loss(before, after), row["excess_error"], ".3f"),
    ]


def task_cells(row: Mapping[str, Any]) -> list[str]:
    """One row of the table under `TASK_HEAD`."""
    shots = f", {row['num_fewshot']} examples" if row["num_fewshot"] else ""
    return [
        f"{row['task']} ({row['metric']}{shots})",
        f"{row['items']:,}",
        f"{100 * row['chance']:.1f}",
        *(percent(row[model]["accuracy"], row[model]["standard_error"]) for model in MODELS),
        percent(row["change"], row["change_error"], "+"),
    ]


class Verdict(msgspec.Struct):
    """The verdict in a record of quality, the only part of it that is read back."""

    outcome: str
    sentence: str


def objection(directory: Path) -> str:
    """Why a folder's record of quality says it is no drop-in; empty otherwise."""
    with suppress(InputError):
        stated = read_json(directory / QUALITY_FILE, "").get("verdict")
        verdict = typed(stated, Verdict, QUALITY_FILE, "")
        if verdict.outcome in (BROKEN, NEEDS_HEALING):
            return " ".join(verdict.sentence.split())[:MOST_SAID]
    return ""


def intact_plan(directory: Path, may_lack: Sequence[str] = ()) -> Plan:
    """The plan of a checkpoint, once its files have the hashes that its manifest states.

    The files that `renew_card` rewrites are left out, and those of `may_lack` that are absent.
    Raises InputError if `directory` is not a pruned checkpoint, or a file is missing or changed.
    """
    check_pruned(directory)
    for name in RENEWED:
        if (directory / name).is_dir():
            raise InputError(f"{directory / name} is a folder where a file belongs: move it away")
    changed = changed_files(directory, {PLAN_FILE: "", **lasting_files(directory)}, may_lack)
    missing = [name for name in (MANIFEST_FILE, *changed) if kind_of(directory / name) is None]
    if odd := [*missing, *changed]:
        told = f"is not the file that {MANIFEST_FILE} states, so this is another model"
        told = "is missing" if missing else told
        raise InputError(f"{directory / odd[0]} {told}: export the checkpoint again from its plan")
    return load_plan(directory / PLAN_FILE)


def lasting_files(directory: Path) -> dict[str, str]:
    """SHA-256 by name, as the manifest states them, of the files that `renew_card` leaves alone."""
    return {n: digest for n, digest in manifest_of(directory).items() if n not in RENEWED}


def renew_card(
    directory: Path, plan: Plan, quality: Mapping[str, Any], measured: Mapping[str, str]
) -> None:
    """Write `quality.json`, a model card with it, and the manifest with both hashes.

    The manifest keeps the hash of every other file: `measured`, the `lasting_files` of before. If
    the process is killed between two writes, `verify` names a file, and the same command repairs
    it. Raises InputError, with the folder as it was, if that holds another checkpoint by now, the
    disk refuses, or another process writes there.
    """
    directory = directory.resolve()
    with readable_disk_errors(directory), locked(lock_of(directory), directory):
        if lasting_files(directory) != measured:
            told = "holds another checkpoint than the one that was measured"
            raise InputError(f"{directory} {told}: give the command again, to measure this one")
        stored, stated = read_folder(directory), card_metadata(directory)
        card = model_card(plan, dense_shape(stored.config), stored.shape, quality, from_base=stated)
        texts = {QUALITY_FILE: as_json(quality), CARD_FILE: card}
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
        files = dict(sorted((manifest_of(directory) | hashes).items()))
        texts = {MANIFEST_FILE: as_json({"sha256": files}), **texts}
        write_files({directory / name: text.encode() for name, text in texts.items()})
        sync(directory)
