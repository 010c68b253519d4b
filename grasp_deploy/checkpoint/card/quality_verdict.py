"""The verdict on a pruned model: usable as it is, worth healing, or broken.

The worst result decides, noise counted, among tasks and corpora that the model was not calibrated
on. Text that it was calibrated on says little: there it does better than anywhere else.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grasp_deploy.stats.noise import t_quantile
from grasp_deploy.stats.wording import plus_minus

DROP_IN, NEEDS_HEALING, BROKEN = "usable as a drop-in", "needs healing", "broken"
UNDECIDED = "undecided"

# Less than what lies between neighbouring sizes of one family: LLaMA 7B has 0.07 nats more than 13B
# on C4 and 0.11 on WikiText-2.
DROP_IN_NATS = 0.05
# By Kaplan et al. (2020), loss goes with the parameters to the power -0.076. On top of 2 nats, 0.5
# more are those of a dense model a twentieth of the size, which would then be the better choice.
BROKEN_NATS = 0.5
# On fewer, a loss is hardly known to a tenth of a nat; two sequences that are alike show no noise.
FEW_TOKENS, FEW_SEQUENCES = 4_000, 8
FEW_ITEMS = 30  # of a task: right or wrong answers to fewer are far from normal
# A loss or gain beyond noise may be noise at a risk of one in forty, each way: two standard errors
# of many sequences, more of few (Student's t), more again of several texts or tasks (Bonferroni).
ERRORS = 2.0
RISK = 0.05  # both ways
MANY = 1_000  # samples; more of them make Student's t no smaller

Row = Mapping[str, Any]


def excess_loss(dense_perplexity: float, pruned_perplexity: float) -> float:
    """Nats per token that the pruned model loses more than the dense one on the same text."""
    return math.log(pruned_perplexity) - math.log(dense_perplexity)


def quality_verdict(corpora: Sequence[Row], tasks: Sequence[Row]) -> dict[str, str]:
    """The `outcome`, and a `sentence` with the deciding figure and its threshold.

    The rows are those of a quality record; an `excess_error` or `change_error` of null is unknown.
    Tasks alone can show that a model needs healing, not that it is a drop-in.
    """
    unseen = [row for row in corpora if not row["calibrated_on"]]
    losses = [_bounds(row, len(unseen)) for row in unseen]
    none = (-math.inf, math.inf, "")
    least, _, said = max(losses, key=lambda loss: loss[0], default=none)
    _, most, in_doubt = max(losses, key=lambda loss: loss[1], default=none)
    lost = [
        f"{row['task']} from {row['dense']['accuracy']:.1%} to {row['pruned']['accuracy']:.1%}"
        for row in tasks
        if row["change"] < 0 and is_beyond_noise(row, len(tasks))
    ]
    if least > BROKEN_NATS:
        outcome, reason = BROKEN, f"{said}, more than {BROKEN_NATS}"
    elif least > DROP_IN_NATS:
        outcome, reason = NEEDS_HEALING, f"{said}, more than the {DROP_IN_NATS} of a drop-in"
    elif lost:
        outcome, reason = NEEDS_HEALING, f"accuracy fell by more than noise: {', '.join(lost)}"
    elif not losses:
        outcome, reason = UNDECIDED, "every text measured was learnt from: name another by --data"
    elif most > DROP_IN_NATS:
        few = f" (at least {FEW_TOKENS:,} tokens in {FEW_SEQUENCES} sequences that differ)"
        few *= math.isinf(most)
        doubt = f"more text{few} would tell if it is within the {DROP_IN_NATS} of a drop-in "
        doubt += "(--sequences)"
        outcome, reason = UNDECIDED, f"{in_doubt}, give or take the noise: {doubt}"
    else:
        known = bool(tasks) and all(is_beyond_noise(row) is not None for row in tasks)
        kept = ", and no accuracy fell by more than noise" if known else ""
        within = f"even with noise no loss over {DROP_IN_NATS}, the limit of a drop-in"
        outcome, reason = DROP_IN, f"{in_doubt}; {within}{kept}"
    return {"outcome": outcome, "sentence": f"{outcome}: {reason}."}


def _bounds(row: Row, corpora: int) -> tuple[float, float, str]:
    """Bounds of the nats per token lost on a corpus, noise included, and the loss in words.

    The lower one is that of the worst of several corpora; under the upper one lies each of them.
    """
    nats = excess_loss(row["dense"]["perplexity"], row["pruned"]["perplexity"])
    error = row["excess_error"]
    told = error is not None and (error > 0 or nats == 0)  # sequences that are alike show no noise
    below, above = (
        margin(row["sequences"], many) * error if told and error else 0.0 if told else math.inf
        for many in (corpora, 1)
    )
    if row["tokens"] < FEW_TOKENS or row["sequences"] < FEW_SEQUENCES:
        above = math.inf  # too little text
    verb = "loses" if nats >= 0 else "gains"
    figure = plus_minus(abs(nats), error, ".3f")
    worst = "the worst with its noise counted of the texts that" if corpora > 1 else "which"
    known = row["calibrated_on_share"] is not None
    learnt = "did not learn from" if known else "is not known to have learnt from"
    said = f"on {row['name']}, {worst} it {learnt}, it {verb} {figure} nats a token"
    return nats - below, nats + above, said


def few(tokens: int) -> str:
    """A warning where a loss is that of few tokens."""
    return " (so few tokens tell little)" if tokens < FEW_TOKENS else ""


def is_beyond_noise(task: Row, comparisons: int = 1) -> bool | None:
    """True for a change in accuracy that noise hardly makes; None where there is no telling.

    Few items tell too little; items that all change alike, as copies of one do, show no noise.
    """
    change, error, items = (task[key] for key in ("change", "change_error", "items"))
    if error is None or items < FEW_ITEMS or (change and not error):
        return None
    return bool(abs(change) > margin(items, comparisons) * error)


def margin(samples: int, comparisons: int = 1) -> float:
    """Standard errors beyond which a mean over so many samples is not noise."""
    if samples < 2:
        return math.inf
    return max(ERRORS, t_quantile(RISK, min(samples, MANY) - 1, comparisons))
