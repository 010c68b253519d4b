"""How far the next-token distributions of two models lie apart on one text.

The divergence is KL(dense || pruned), exact over the vocabulary: zero where both models say the
same, whatever the text's own next token is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import PreTrainedModel

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.perplexity import POSITIONS_IN_FLOAT32
from grasp_deploy.files.progress import OnProgress


def token_drift(dense: Tensor, pruned: Tensor, targets: Tensor) -> Tensor:
    """Figures `(P, 4)` from logits `(P, V)` of both models and the tokens `(P,)` that follow.

    In float32: KL(dense || pruned) in nats, 1 where the most likely token is the same, the dense
    model's loss and the pruned model's.
    """
    log_p, log_q = dense.float().log_softmax(-1), pruned.float().log_softmax(-1)
    divergence = kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    agrees = (dense.argmax(-1) == pruned.argmax(-1)).float()
    losses = [-scores.gather(-1, targets[:, None])[:, 0] for scores in (log_p, log_q)]
    return torch.stack([divergence, agrees, *losses], dim=-1)


@torch.no_grad()
def mean_drift(
    dense: PreTrainedModel,
    pruned: PreTrainedModel,
    token_ids: Tensor,
    batch_size: int,
    on_progress: OnProgress,
    stage: str,
) -> Tensor:
    """The figures of `token_drift`, `(n, 4)` float64, as means over each of `(n, T)` sequences.

    Float32 copies stay a slice in size, and nothing grows with the number of sequences. Raises
    InputError for a figure that is not finite.
    """
    means = torch.zeros(len(token_ids), 4, dtype=torch.float64)
    for first in range(0, len(token_ids), batch_size):
        ids = token_ids[first : first + batch_size].to(dense.device)  # (b, T)
        outputs = [model(input_ids=ids, use_cache=False).logits for model in (dense, pruned)]
        for row, targets in enumerate(ids):
            before, after = (logits[row, :-1].split(POSITIONS_IN_FLOAT32) for logits in outputs)
            parts = zip(before, after, targets[1:].split(POSITIONS_IN_FLOAT32), strict=True)
            summed = sum(token_drift(*part).cpu().double().sum(0) for part in parts)
            means[first + row] = summed / (len(targets) - 1)
        done = first + len(ids)
        if not means[:done].isfinite().all():
            raise InputError(
                f"the drift is not finite after {done} of {len(token_ids)} sequences: the weights "
                "of a model are broken or overflow their dtype; try --dtype float32, and check "
                "the models with `grasp-deploy verify`"
            )
        shown = float(means[:done, 0].mean())
        on_progress({"stage": stage, "step": done, "steps": len(token_ids), "distance": shown})
    return means
