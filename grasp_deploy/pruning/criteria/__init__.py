"""One-shot scores on the flat axis of units: how much a frozen model would miss each of them."""

from grasp_deploy.pruning.criteria.criterion import ADDITIVE, CRITERIA, criterion_scores

__all__ = ["ADDITIVE", "CRITERIA", "criterion_scores"]
