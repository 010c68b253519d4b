"""The texts that a checkpoint is measured on, and those that it was calibrated or healed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grasp_deploy.checkpoint.card.quality_verdict import seen
from grasp_deploy.data import TextSource, evaluation_source
from grasp_deploy.data.source import display_name
from grasp_deploy.errors import InputError

DEFAULT_CORPORA = ("wikitext2", "c4")


def heldout_corpora(
    data: Sequence[str],
    seen_sources: Sequence[str],
    column: str | None = None,
    healed: bool = False,
) -> list[TextSource]:
    """The texts of `--data`; by default WikiText-2 and C4, less those in `seen_sources`.

    `healed` is true if the checkpoint was healed on some of those. Raises InputError for two texts
    of one name, and if none is left.
    """
    corpora = [evaluation_source(text, column=column) for text in data or DEFAULT_CORPORA]
    if not data:
        corpora = [corpus for corpus in corpora if not was_seen(corpus, seen_sources)]
    if not corpora:
        raise InputError(
            f"the model was {seen(healed)} {' and '.join(DEFAULT_CORPORA)}: name other text "
            "with --data"
        )
    for index, corpus in enumerate(corpora):
        if corpus.label in [other.label for other in corpora[:index]]:
            raise InputError(
                f"--data names two corpora {corpus.label}: give one another name, as in "
                f"other={corpus.what}"
            )
    return corpora


def all_sources(provenance: Mapping[str, Any]) -> list[str]:
    """The texts that a plan was calibrated or healed on, as they were given."""
    sources = [*_sources(provenance["calibration"]), *healing_sources(provenance)]
    return list(dict.fromkeys(sources))


def healing_sources(provenance: Mapping[str, Any]) -> list[str]:
    """The texts that a checkpoint was healed on; none if it was not healed."""
    texts = [healing["text"] for healing in provenance.get("healing", [])]
    return list(dict.fromkeys(source for text in texts for source in _sources(text)))


def was_seen(corpus: TextSource, sources: Sequence[str]) -> bool:
    """True if a corpus is one of these texts, in any split, or has the name of one."""
    return any(
        corpus.label == display_name(source) or corpus.is_same_text(source) for source in sources
    )


def _sources(text: Mapping[str, Any]) -> list[str]:
    return [part["source"] for part in text.get("parts") or [text]]
