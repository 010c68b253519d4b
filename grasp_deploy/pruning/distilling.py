"""The dense model's predictions, which gates, scales and weights learn (distillation).

For a `Distiller` the dense model embeds the tokens for both and has the head of both: neither is
ever cut. What learns is in float32, whatever the dtype that its products are taken in. As in
`training`, all state can be saved: a run may stop after any step and continue bit for bit.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_deploy.pruning.layout import device_of
from grasp_deploy.pruning.objective import finite
from grasp_deploy.pruning.team import ALONE, Team

LOGITS_AT_ONCE = 2**22  # of each model, at some 20 bytes: more would not fit a processor's caches
LOGITS_ON_GPU = 2**25  # where fewer take longer to launch than to compute
BETAS = (0.9, 0.99)
LEAST_SIZE = 1e-3  # least size that a weight's rate goes by: zeros must move too, as in Adafactor


class Measured(NamedTuple):
    """Means over tokens of each of `n` sequences, in nats; on the CPU."""

    divergence: Tensor  # (n,) float64, of the student from the dense model
    loss: Tensor  # (n,) float64, of the student on the text's own next tokens
    dense_loss: Tensor  # (n,) float64


class Divergence(torch.autograd.Function):
    """Mean Kullback-Leibler divergence of predictions from the dense model's, in nats per token.

    Takes `(N, d)` hidden states behind the last norm, the dense model's, and the `(V, d)` head of
    both. The text's own loss also rewards learning the text's style; this one asks for the dense
    model's predictions and no more (Hinton et al. 2015, temperature 1). Logits are made chunk by
    chunk. The forward pass already computes the gradient, while they are there.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, expected: Tensor, head: Tensor) -> Tensor:
        gradient, total = torch.empty_like(hidden), hidden.new_zeros((), dtype=torch.float32)
        for chunk in _chunks(len(hidden), head):
            predicted, wanted = (_log_chances(x[chunk], head) for x in (hidden, expected))
            chances = wanted.exp()
            total += torch.linalg.vecdot(chances, wanted.sub_(predicted)).sum()
            if ctx.needs_input_grad[0]:
                excess = predicted.exp_().sub_(chances)
                gradient[chunk] = excess.to(head.dtype) @ head
        ctx.save_for_backward(gradient)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *of_mean: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors  # of the sum: float16 would lose the small of a mean
        return gradient * (of_mean[0] / len(gradient)), None, None


class DensePredictions:
    """A dense model's hidden states over calibration text, from which its predictions come.

    They are kept on the CPU. Each process keeps those of the rows that it was dealt.
    """

    def __init__(self, model: nn.Module, rows: Tensor, team: Team = ALONE) -> None:
        self._model, self._rows, self._team = model, rows, team
        self._states: dict[int, Tensor] = {}  # (T, d) by the row's place
        self._read: set[tuple[int, ...]] = set()  # batches, of the whole team

    def has(self, batch: Tensor) -> bool:
        """True if a batch of these `(B,)` places was read."""
        return tuple(batch.tolist()) in self._read

    @torch.no_grad()
    def read(self, batch: Tensor) -> None:
        """Run the model as it is now on this process's part of a batch of `(B,)` places of rows."""
        places, share = self._team.deal(batch)
        states = last_hidden(self._model, input_ids=self._ids(places))
        self._read.add(tuple(batch.tolist()))
        if share:
            rows = (row.clone() for row in states.cpu())  # a view would keep its whole batch
            self._states.update(zip(places.tolist(), rows, strict=True))

    def divergence(self, places: Tensor) -> Tensor:
        """Mean divergence of what the model predicts now, in nats per token, over `(B,)` places.

        0 for rows that do not count in this process.
        """
        hidden = last_hidden(self._model, input_ids=self._ids(places))
        own = zip(places.tolist(), hidden.detach(), strict=True)
        expected = torch.stack([self._states.get(p, x).to(hidden.device) for p, x in own])
        return mean_divergence(hidden, expected, self._model, self._team)

    def _ids(self, places: Tensor) -> Tensor:
        return self._rows[places].to(device_of(self._model))


class Distiller:
    """A pruned model that learns, and its optimiser.

    `student` is in float32, without embeddings and head: `teacher` has them for both. `parts` are
    what this process holds of the student's weights, by name; each process holds all of `whole`
    ones. Rates are relative to a weight's size: one model's are ten times another's.
    """

    def __init__(self, teacher: nn.Module, student: nn.Module, team: Team = ALONE) -> None:
        self.teacher: Any = teacher
        self.student: Any = student
        self.team = team
        self._weights = dict(student.named_parameters())
        self.parts = {name: team.held(weight.detach()) for name, weight in self._weights.items()}
        self.whole = {n for n, w in self._weights.items() if team.held(w) is w}
        self._optimizers = {
            name: torch.optim.AdamW([part], betas=BETAS, weight_decay=0.0, fused=True)
            for name, part in self.parts.items()
        }
        self._sizes = {name: self._size(name) for name in self.parts}
        for name, part in self.parts.items():
            self._optimizers[name].state[part] = {
                "step": torch.zeros((), device=part.device),
                "exp_avg": torch.zeros_like(part),
                "exp_avg_sq": torch.zeros_like(part),
            }
            if name not in self.whole:  # it steps as soon as its gradient is there, which is freed
                self._weights[name].register_post_accumulate_grad_hook(partial(self._step, name))

    def learn(self, ids: Tensor, rate: float, step: int) -> float:
        """Make a step on `(B, T)` ids; return the divergence before it, in nats per token.

        `rate` is a share of each weight's size. Raises LossError if the divergence is not finite.
        """
        mine, share = self.team.deal(ids)
        hidden, expected = self._hidden(mine)
        mean = mean_divergence(hidden, expected, self.teacher, self.team) * share
        divergence = mean.detach().clone()
        self.team.add_up(divergence)
        value = finite(divergence, "recovery", step)
        for name, optimizer in self._optimizers.items():
            optimizer.param_groups[0]["lr"] = rate * self._sizes[name]
        (mean * self.team.size).backward()  # FSDP2 takes the mean of gradients over processes
        for name, weight in self._weights.items():
            if name in self.whole:
                assert weight.grad is not None, "every weight stands in the path to the loss"
                self.team.add_up(weight.grad.div_(self.team.size))
                self._step(name, weight)
        return value

    def _size(self, name: str) -> float:
        """The root mean square of a weight, before it learns."""
        power = self.parts[name].square().sum()
        if name not in self.whole:
            self.team.add_up(power)
        return max(LEAST_SIZE, float(power / self._weights[name].numel()) ** 0.5)

    def _step(self, name: str, weight: Tensor) -> None:
        """Step what this process holds of a weight, and free the gradient."""
        assert weight.grad is not None
        self.parts[name].grad = self.team.held(weight.grad)
        weight.grad = None
        self._optimizers[name].step()
        self._optimizers[name].zero_grad()

    @torch.no_grad()
    def measure(self, sequences: Tensor) -> Measured:
        """Measure the student on `(n, T)` sequences, one at a time in each process."""
        found = torch.zeros(3, len(sequences), dtype=torch.float64)
        for places in torch.arange(len(sequences)).split(self.team.size):
            mine, share = self.team.deal(places)
            ids = sequences[mine]
            hidden, expected = self._hidden(ids)
            with self.team.gathered(self.teacher.lm_head):
                means = _means(hidden[0], expected[0], self.teacher.lm_head.weight, ids[0])
            found[:, mine[0]] = means if share else 0.0
        self.team.add_up(found)
        return Measured(*found)

    def state(self) -> dict[tuple[str, str], Tensor]:
        """Weights and moments by kind and name; what a run that goes on must `restore`."""
        moments = {
            (kind, name): self._optimizers[name].state[part][kind]
            for kind in ("exp_avg", "exp_avg_sq")
            for name, part in self.parts.items()
        }
        return {("weights", name): part for name, part in self.parts.items()} | moments

    def restore(self, state: dict[tuple[str, str], Tensor], steps: int) -> None:
        """Return to a state that was saved after so many steps."""
        for key, tensor in self.state().items():
            tensor.copy_(state[key])
        for name, part in self.parts.items():
            self._optimizers[name].state[part]["step"].fill_(steps)

    def _hidden(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """`(B, T, d)` inputs of the head, the student's and the dense model's."""
        with torch.no_grad():
            embedded = self.teacher.model.embed_tokens(ids.to(device_of(self.teacher)))
            expected = last_hidden(self.teacher, inputs_embeds=embedded)
        return last_hidden(self.student, inputs_embeds=embedded), expected


def last_hidden(model: Any, **inputs: Tensor) -> Tensor:
    """`(B, T, d)` inputs of the head, scaled as its logits are."""
    hidden: Tensor = model.model(**inputs, use_cache=False)[0]
    return hidden / getattr(model.config, "logits_scaling", 1.0)  # of Granite


def mean_divergence(hidden: Tensor, expected: Tensor, model: Any, team: Team) -> Tensor:
    """The mean divergence of `(B, T, d)` hidden states under a model's head."""
    with team.gathered(model.lm_head):
        states = hidden.flatten(0, 1), expected.flatten(0, 1)
        mean: Tensor = Divergence.apply(*states, model.lm_head.weight)
    return mean


def _means(hidden: Tensor, expected: Tensor, head: Tensor, ids: Tensor) -> Tensor:
    """`(3,)` figures of `Measured` for one sequence, from `(T, d)` hidden states."""
    sums = torch.zeros(3, dtype=torch.float64)
    following = ids.to(hidden.device)[1:]
    for chunk in _chunks(len(following), head):
        predicted, wanted = (_log_chances(x[chunk], head) for x in (hidden[:-1], expected[:-1]))
        of_text = (F.nll_loss(x, following[chunk], reduction="sum") for x in (predicted, wanted))
        divergence = torch.linalg.vecdot(wanted.exp(), wanted - predicted).sum()
        sums += torch.stack([divergence, *of_text]).double().cpu()
    return sums / len(following)


def _chunks(rows: int, head: Tensor) -> list[slice]:
    """Slices of the rows; the logits of one slice are in memory together."""
    size = max(1, (LOGITS_ON_GPU if head.is_cuda else LOGITS_AT_ONCE) // len(head))
    return [slice(first, first + size) for first in range(0, rows, size)]


def _log_chances(hidden: Tensor, head: Tensor) -> Tensor:
    """`(n, V)` log-probabilities in float32."""
    return F.log_softmax((hidden.to(head.dtype) @ head.T).float(), dim=-1)
