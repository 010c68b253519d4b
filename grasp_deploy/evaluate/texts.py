"""The texts that models are measured on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grasp_deploy.checkpoint.format.shapes import ModelShape, read_config
from grasp_deploy.checkpoint.plan import Plan, sources_of
from grasp_deploy.checkpoint.read.loading import check_tokens, load_tokenizer
from grasp_deploy.checkpoint.read.source import fewest_positions
from grasp_deploy.data import Blocks, TextSource, evaluation_source, read_blocks
from grasp_deploy.data.documents import has_columns
from grasp_deploy.data.overlap import NOTEWORTHY_SHARE, WINDOW_TOKENS, calibrated_share
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.settings import SEQUENCES, CompareSettings

DEFAULT_CORPORA = ("wikitext2", "c4")
LONGEST = 2048  # tokens of a sequence, unless the user says otherwise


def heldout_corpora(
    data: Sequence[str], seen: Sequence[str] = (), column: str | None = None
) -> list[TextSource]:
    """The texts of `--data`; by default WikiText-2 and C4, less those that the model has `seen`.

    Raises InputError for two texts of one name, and if none is left.
    """
    corpora = [evaluation_source(text, column) for text in data or DEFAULT_CORPORA]
    if any(has_columns(corpus.what) for corpus in corpora):  # the column is meant for these
        corpora = [c if has_columns(c.what) else replace(c, column=None) for c in corpora]
    if not data:
        corpora = [c for c in corpora if not any(map(c.is_same_text, seen))]
    if not corpora:
        raise InputError(
            f"the model was calibrated or healed on {' and '.join(DEFAULT_CORPORA)}: name other "
            "text with --data"
        )
    labels = [corpus.label for corpus in corpora]
    for corpus in corpora:
        if labels.count(corpus.label) > 1:
            raise InputError(
                f"--data names two corpora {corpus.label}: give one another name, as in "
                f"other={corpus.what}"
            )
    return corpora


def is_calibrated_on(share: float | None) -> bool:
    """True for a `calibrated_share` with which a text does not count; None is unknown."""
    return (share or 0) >= NOTEWORTHY_SHARE


def calibrated_on(
    corpus: TextSource, blocks: Blocks, plan: Plan | None, shape: ModelShape
) -> tuple[bool, float | None]:
    """Whether a model is known to have learnt from a text, and its `calibrated_share`.

    Overlapping tokens reveal the text under any name; of sequences too short for a fingerprint the
    name decides. The share is None where other text may have been learnt from: by a model without
    plan, in such sequences, or by the rounding of four bits.
    """
    if plan is None:
        return False, None
    windows = plan.calibrated
    share = None if windows is None else calibrated_share(blocks.token_ids, windows)
    seen = is_calibrated_on(share)
    if share is None or plan.provenance["calibration"]["sequence_length"] < WINDOW_TOKENS:
        return seen or any(map(corpus.is_same_text, sources_of(plan.provenance))), None
    return seen, None if shape.group_columns and not seen else share


def read_texts(
    folder: Path, corpora: Sequence[TextSource], settings: CompareSettings
) -> dict[TextSource, Blocks]:
    """The sequences of each corpus, as a model's tokenizer makes them; InputError as it reads."""
    config, tokenizer = read_config(folder), load_tokenizer(folder)
    length = settings.sequence_length or fewest_positions([folder], LONGEST)
    wanted, or_fewer = settings.sequences or SEQUENCES, settings.sequences is None
    texts = {}
    for corpus in corpora:
        texts[corpus] = read_blocks(tokenizer, corpus, length, wanted, or_fewer=or_fewer)
        check_tokens(texts[corpus].token_ids, config)
    return texts
