"""The verdict on a pruned model: usable as it is, worth healing, broken, or undecided.

Corpora that the model was not calibrated on and tasks decide, the worst of them. What the model was
calibrated on says little: there it does better than anywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grasp_deploy.stats.noise import t_quantile
from grasp_deploy.stats.wording import counted, listed, plus_minus

DROP_IN, NEEDS_HEALING, BROKEN = "usable as a drop-in", "needs healing", "broken"
NEEDS_MORE_HEALING = "needs more healing"  # of a model that was healed already
UNDECIDED = "undecided"

# Less than what lies between neighbouring sizes of one family: LLaMA 7B has 0.07 nats more than 13B
# on C4 and 0.11 on WikiText-2 (perplexities 7.05 and 6.58, 5.67 and 5.08).
DROP_IN_NATS = 0.05
# By Kaplan et al. (2020), loss goes with the parameters to the power -0.076. From the 2 nats of a
# usual model, 0.5 more are those of a dense model a twentieth of its size: whoever kept more than
# that of the weights would do better with the small model.
BROKEN_NATS = 0.5
# A loss or gain beyond noise may be noise at a risk of one in forty, each way: two standard errors
# of many blocks, more of few (Student's t), and more again of several tasks together (Bonferroni).
ERRORS = 2.0
RISK = 0.05  # both ways
MANY = 1_000  # samples, of which one more makes no difference

Row = Mapping[str, Any]


def excess_loss(dense_perplexity: float, pruned_perplexity: float) -> float:
    """Nats per token that the pruned model loses more than the dense one on the same text."""
    return math.log(pruned_perplexity) - math.log(dense_perplexity)


def seen(healed: bool) -> str:
    """What was done on a text that no longer tells how good the model is."""
    return "calibrated or healed on" if healed else "calibrated on"


def quality_verdict(
    corpora: Sequence[Row], tasks: Sequence[Row], healed: bool = False
) -> dict[str, str]:
    """`outcome` and a `sentence` of reason, which names the figure that decides and its threshold.

    A corpus has `name`, `calibrated_on`, `sequences`, `dense` and `pruned` with their `perplexity`,
    and `excess_error` of the difference (null: unknown). A task has `task`, `chance`, `change` and
    `change_error` (null: unknown), and `dense` and `pruned` with their `accuracy` and
    `standard_error`. `healed`: whether the model was healed, which `calibrated_on` then tells too.
    Tasks alone can condemn a model and not acquit it.
    """
    losses = [_Loss.of(row) for row in corpora if not row["calibrated_on"]]
    worst = max(losses, key=lambda loss: loss.at_least, default=None)
    fallen, lost = _fallen_to_chance(tasks), _lost_tasks(tasks)
    text = _Text(len(losses), seen(healed))
    needs_healing = NEEDS_MORE_HEALING if healed else NEEDS_HEALING
    if worst and worst.at_least > BROKEN_NATS:
        return _verdict(BROKEN, f"{text.named(worst)}, it {worst.said()}, more than {BROKEN_NATS}")
    if fallen:
        return _verdict(BROKEN, _said_of_fallen(fallen))
    if worst and worst.at_least > DROP_IN_NATS:
        allowed = f"more than the {DROP_IN_NATS} of a drop-in"
        if worst.nats > BROKEN_NATS:
            allowed += f", and whether it is more than {BROKEN_NATS} takes more text to see"
        else:
            allowed += f" and at most {BROKEN_NATS}"
        return _verdict(needs_healing, f"{text.named(worst)}, it {worst.said()}, {allowed}")
    if lost:
        return _verdict(needs_healing, _said_of_lost(lost))
    return _not_condemned(losses, tasks, text)


def _not_condemned(losses: Sequence[_Loss], tasks: Sequence[Row], text: _Text) -> dict[str, str]:
    """The verdict on a model that is not condemned: a drop-in, or undecided.

    A drop-in is a promise, so its loss must be small with noise added. To condemn a model, it must
    be large with noise taken off.
    """
    worst = max(losses, key=lambda loss: loss.at_most, default=None)
    if worst is None:
        return _verdict(UNDECIDED, f"no text was measured that the model was not {text.seen}")
    named = text.named(worst)
    if worst.at_most > DROP_IN_NATS:
        doubt = (
            f"whether its loss is at most the {DROP_IN_NATS} of a drop-in takes more text to see"
        )
        return _verdict(UNDECIDED, f"{named}, it {worst.said()}, and {doubt} (--sequences)")
    reason = f"{named}, it {worst.bounded()}"
    if tasks:
        reason += f", and no accuracy on {counted(len(tasks), 'task')} fell by more than noise"
    return _verdict(DROP_IN, reason)


@dataclass(frozen=True)
class _Loss:
    """What a corpus says was lost."""

    name: str
    nats: float
    error: float | None
    blocks: int

    @classmethod
    def of(cls, row: Row) -> _Loss:
        perplexities = (row[model]["perplexity"] for model in ("dense", "pruned"))
        return cls(row["name"], excess_loss(*perplexities), row["excess_error"], row["sequences"])

    @property
    def noise(self) -> float:
        """How far the loss may be from what more text would show; 0 where that is unknown."""
        return _errors(self.blocks) * self.error if self.error else 0.0

    @property
    def at_least(self) -> float:
        """With noise at its best."""
        return self.nats - self.noise

    @property
    def at_most(self) -> float:
        """With noise at its worst."""
        return math.inf if self.error is None else self.nats + self.noise

    def said(self) -> str:
        lost = "loses" if self.nats >= 0 else "gains"
        return f"{lost} {plus_minus(abs(self.nats), self.error, '.3f')} nats a token"

    def bounded(self) -> str:
        """How a loss is small: what it is at most, unless it is a gain for certain."""
        if self.at_most < 0:
            return f"{self.said()}, where a drop-in may lose {DROP_IN_NATS}"
        lost = "shows no loss beyond noise:" if self.nats <= self.noise else "loses"
        return (
            f"{lost} at most {self.at_most:.3f} nats a token (noise included), less than the "
            f"{DROP_IN_NATS} that a drop-in may lose"
        )


@dataclass(frozen=True)
class _Text:
    """The corpora that count: how many there are, and what was not done on them."""

    corpora: int
    seen: str

    def named(self, loss: _Loss) -> str:
        among = f"the worst of {self.corpora} corpora" if self.corpora > 1 else "text"
        return f"on {loss.name}, {among} that it was not {self.seen}"


def _errors(samples: int, comparisons: int = 1) -> float:
    """How many standard errors are no noise, of a mean over so many samples."""
    if samples < 2:
        return math.inf
    return max(ERRORS, t_quantile(RISK, min(samples, MANY) - 1, comparisons))


def _lost_tasks(tasks: Sequence[Row]) -> list[Row]:
    """The tasks whose accuracy fell by more than noise; where that is unknown, it tells nothing."""
    return [
        row
        for row in tasks
        if row["change_error"] is not None
        and row["change"] < -_errors(row["items"], len(tasks)) * row["change_error"]
    ]


def _fallen_to_chance(tasks: Sequence[Row]) -> list[Row]:
    """The tasks that only the dense model can do, if they are most of those that it can do.

    One task of many may ask for a single skill; most of them are the model.
    """
    able = [row for row in tasks if _above_chance(row, "dense")]
    fallen = [row for row in _lost_tasks(able) if not _above_chance(row, "pruned")]
    return fallen if 2 * len(fallen) > len(able) else []


def _above_chance(row: Row, model: str) -> bool:
    accuracy, error = row[model]["accuracy"], row[model]["standard_error"]
    return error is not None and accuracy > row["chance"] + ERRORS * error


def _said_of_fallen(rows: Sequence[Row]) -> str:
    first = rows[0]
    return (
        f"{listed(row['task'] for row in rows)} fell to the level of chance (accuracy on "
        f"{first['task']} {first['pruned']['accuracy']:.1%}, dense "
        f"{first['dense']['accuracy']:.1%}, chance {first['chance']:.1%}, within two standard "
        "errors)"
    )


def _said_of_lost(rows: Sequence[Row]) -> str:
    worst, *others = sorted(rows, key=lambda row: row["change"])
    more = f", and so for {listed(row['task'] for row in others)}" if others else ""
    return (
        f"accuracy on {worst['task']} fell by {-100 * worst['change']:.1f} points, more than noise "
        f"(a standard error of {100 * worst['change_error']:.1f}){more}"
    )


def _verdict(outcome: str, reason: str) -> dict[str, str]:
    return {"outcome": outcome, "sentence": f"{outcome}: {reason}."}
