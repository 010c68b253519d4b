"""The verdict on a pruned model: usable as it is, worth healing, or broken.

Corpora that the model was not calibrated on and tasks decide, the worst of them. What the model was
calibrated on says little: there it does better than anywhere else. Text of its kind alone does not
acquit a model: other kinds may lose more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grasp_deploy.stats.noise import t_quantile
from grasp_deploy.stats.wording import plus_minus

DROP_IN, NEEDS_HEALING, BROKEN = "usable as a drop-in", "needs healing", "broken"
NEEDS_MORE_HEALING = "needs more healing"  # of a model that was healed already
UNDECIDED = "undecided"

# Less than what lies between neighbouring sizes of one family: LLaMA 7B has 0.07 nats more than 13B
# on C4 and 0.11 on WikiText-2.
DROP_IN_NATS = 0.05
# By Kaplan et al. (2020), loss goes with the parameters to the power -0.076. On top of 2 nats, 0.5
# more are those of a dense model a twentieth of the size, which would then be the better choice.
BROKEN_NATS = 0.5
# A loss or gain beyond noise may be noise at a risk of one in forty, each way: two standard errors
# of many sequences, more of few (Student's t), more again of several tasks together (Bonferroni).
ERRORS = 2.0
RISK = 0.05  # both ways
MANY = 1_000  # samples, of which one more makes no difference

Row = Mapping[str, Any]


def excess_loss(dense_perplexity: float, pruned_perplexity: float) -> float:
    """Nats per token that the pruned model loses more than the dense one on the same text."""
    return math.log(pruned_perplexity) - math.log(dense_perplexity)


def seen(healed: bool) -> str:
    """The use that disqualifies a text as evidence of quality, in words."""
    return "calibrated or healed on" if healed else "calibrated on"


def quality_verdict(
    corpora: Sequence[Row], tasks: Sequence[Row], healed: bool = False
) -> dict[str, str]:
    """`outcome`, and a `sentence` that names the figure that decides and its threshold.

    The rows are those of a quality record; an `excess_error` or `change_error` of null is unknown.
    For a `healed` model `calibrated_on` covers that text too. Tasks alone can condemn a model and
    not acquit it.
    """
    unmeasured = f"no text was measured that the model was not {seen(healed)}"
    none = _Loss(unmeasured, -math.inf, math.inf)
    measured = [row for row in corpora if not row["calibrated_on"]]
    losses = [_Loss.of(row, seen(healed)) for row in measured]
    worst = max(losses, key=lambda loss: loss.at_least, default=none)
    fallen, lost = _fallen_to_chance(tasks), _lost_tasks(tasks)
    needs_healing = NEEDS_MORE_HEALING if healed else NEEDS_HEALING
    if worst.at_least > BROKEN_NATS:
        return _verdict(BROKEN, f"{worst.said}, more than {BROKEN_NATS}")
    if fallen:
        return _verdict(BROKEN, _said(fallen, "to the level of chance"))
    if worst.at_least > DROP_IN_NATS:
        return _verdict(needs_healing, f"{worst.said}, more than the {DROP_IN_NATS} of a drop-in")
    if lost:
        return _verdict(needs_healing, _said(lost, "by more than noise"))
    worst = max(losses, key=lambda loss: loss.at_most, default=none)
    if worst.at_most > DROP_IN_NATS:
        doubt = f"it takes more text to see if at most the {DROP_IN_NATS} of a drop-in are lost"
        return _verdict(UNDECIDED, f"{worst.said}: {doubt} (--data, --sequences)")
    if all(row.get("other_kind") is False for row in measured):  # None: an older plan
        doubt = f"text of other kinds than it was {seen(healed)} may lose more, and none was"
        return _verdict(UNDECIDED, f"{worst.said}: {doubt} measured (--data)")
    kept = ", and no accuracy fell by more than noise" if tasks else ""
    within = f"with noise at most the {DROP_IN_NATS} that a drop-in may lose"
    return _verdict(DROP_IN, f"{worst.said}, {within}{kept}")


@dataclass(frozen=True)
class _Loss:
    """The loss on one corpus above the dense model's: in words, and its bounds in nats a token."""

    said: str
    at_least: float
    at_most: float

    @classmethod
    def of(cls, row: Row, use: str) -> _Loss:
        nats = excess_loss(row["dense"]["perplexity"], row["pruned"]["perplexity"])
        error = row["excess_error"]
        verb = "loses" if nats >= 0 else "gains"
        figure = plus_minus(abs(nats), error, ".3f")
        said = f"on {row['name']}, the worst text that it was not {use}, it {verb} {figure} nats"
        noise = math.inf if error is None else _errors(row["sequences"]) * error if error else 0.0
        return cls(f"{said} a token", nats - noise, nats + noise)


def _errors(samples: int, comparisons: int = 1) -> float:
    """Standard errors beyond which a mean over so many samples is not noise."""
    if samples < 2:
        return math.inf
    return max(ERRORS, t_quantile(RISK, min(samples, MANY) - 1, comparisons))


def _lost_tasks(tasks: Sequence[Row]) -> list[Row]:
    return [
        row
        for row in tasks
        if row["change_error"] is not None
        and row["change"] < -_errors(row["items"], len(tasks)) * row["change_error"]
    ]


def _fallen_to_chance(tasks: Sequence[Row]) -> list[Row]:
    """The tasks that only the dense model can do, if they are most of those that it can do."""
    able = [row for row in tasks if _above_chance(row, "dense")]
    fallen = [row for row in _lost_tasks(able) if not _above_chance(row, "pruned")]
    return fallen if 2 * len(fallen) > len(able) else []


def _above_chance(row: Row, model: str) -> bool:
    accuracy, error = row[model]["accuracy"], row[model]["standard_error"]
    return error is not None and accuracy > row["chance"] + ERRORS * error


def _said(rows: Sequence[Row], fell: str) -> str:
    changes = (
        f"{row['task']} from {row['dense']['accuracy']:.1%} to {row['pruned']['accuracy']:.1%}"
        for row in rows
    )
    return f"accuracy fell {fell}: {', '.join(changes)}"


def _verdict(outcome: str, reason: str) -> dict[str, str]:
    return {"outcome": outcome, "sentence": f"{outcome}: {reason}."}
