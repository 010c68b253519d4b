"""REAP's score against its formula, expert by expert and token by token."""

import torch

from benchmarks.baselines.reap import reap
from benchmarks.baselines.shares import reap_uniform
from grasp_deploy.pruning.budget import make_budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.projection import project
from tests.pruning.tiny_units import EXPERTS as UNITS
from tests.tiny import VARIANTS, tiny_model

BUDGET = make_budget(UNITS, torch.where(UNITS.is_kv, 0.0, 1.0), 12)
IDS = torch.randint(1, 256, (3, 16), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_it_is_the_mean_of_weight_times_norm_over_the_tokens_that_take_the_expert() -> None:
    model = tiny_model(**VARIANTS["qwen3-moe"])
    mlp, seen = model.model.layers[1].mlp, []
    hook = mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(0, 1)))
    model(IDS)
    hook.remove()
    _, weights, chosen = mlp.gate(seen[0])
    taken: dict[int, list[float]] = {}
    for x, of_token, experts in zip(seen[0], weights, chosen, strict=True):
        for weight, expert in zip(of_token, experts.tolist(), strict=True):
            gate, up = (mlp.experts.gate_up_proj[expert] @ x).chunk(2)
            y = mlp.experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)
            taken.setdefault(expert, []).append(float(weight * y.norm()))
    expected = [sum(taken.get(e, [0])) / len(taken.get(e, [0])) for e in range(8)]
    scores = reap(model, BUDGET, CalibrationText(IDS, 2))
    torch.testing.assert_close(scores[UNITS.ffn(1)].float(), torch.tensor(expected))
    mask = project(reap_uniform(model, BUDGET, CalibrationText(IDS, 2)), BUDGET)
    assert [experts for experts, _ in UNITS.kept_per_layer(mask)] == [4, 4, 4]
