"""What stages make of tiny models, in one process or in several: `rank_checks.py FOLDER...`.

torchrun runs it; each result is written into its folder for the test that started it.
"""

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Linear, Parameter
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.read.source import WEIGHTS_FILE
from grasp_deploy.compression.own_text import write_rows
from grasp_deploy.compression.ranks import (
    is_lead,
    learner,
    load_divided,
    rows_at_lead,
    rows_from_lead,
    team,
)
from grasp_deploy.pruning.compensation import OutputProjections, compensate
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.distilling import DensePredictions, Distiller
from grasp_deploy.pruning.objective import mean_loss, sequence_losses
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import LearningState, learn_scales
from tests.pruning.tiny_units import UNITS, generator, token_ids

RESULTS = "results.safetensors"
LEARNT = "learnt "  # begins the names of weights that learn


def disturbed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights that have something to learn from what they were."""
    noise = {
        name: torch.randn(w.shape, generator=generator(len(name))) for name, w in weights.items()
    }
    return {name: w + 0.1 * w.std() * noise[name] for name, w in weights.items()}


def learnt_by(teacher: PreTrainedModel, student: PreTrainedModel) -> dict[str, Tensor]:
    """What a student measures, and then its weights, once it has learnt a little."""
    distiller, ids = Distiller(teacher, student, team()), token_ids(11, 12)
    measured = distiller.measure(ids)._asdict()
    for step, batch in enumerate(ids.split(4)):
        distiller.learn(batch, 0.02, step)
    weights = {
        f"{LEARNT}{name}": part if name in distiller.whole else rows_at_lead(part)
        for name, part in distiller.parts.items()
    }
    return weights | {f"measured {name}": values for name, values in measured.items()}


def results_of(model: PreTrainedModel, student: PreTrainedModel) -> dict[str, Tensor]:
    """Losses, scores, own text, and refitted and learnt weights; those on the lead alone."""
    # 7 sequences in batches of 2: of three processes one has a last batch, and two have none.
    ids = token_ids(7, 12)
    mask = torch.arange(UNITS.size) % 3 > 0
    own = write_rows(
        model,
        iter([[5, 6], [7], [8, 9, 10], [11]] * 9),
        4,
        9,
        ends={0},
        generator=generator(2),
        on_step=lambda _: None,
    )
    found = {
        "loss": torch.tensor(mean_loss(model, ids, 2, team())),
        "losses": sequence_losses(model, ids, 2, team()),
        "scores": obs_scores(model, UNITS, CalibrationText(ids, 2, team=team())),
        "own": own,
    }
    schedule = Schedule(CalibrationBlocks(ids[:5], ids[5:]), 2, 2, 0.02, seed=0)
    predictions = DensePredictions(model, schedule.blocks.rows, team())
    for batch in schedule.batches(0, team().size):
        predictions.read(batch)
    state, loss = LearningState(torch.ones(UNITS.size), 0.02), predictions.divergence
    steps = learn_scales(model, UNITS, mask, schedule, state, loss, team())
    found["divergences"] = torch.tensor([step.loss for step in steps] + [state.best_loss])
    outputs = OutputProjections(model, UNITS, team=team())
    fits = list(compensate(model, UNITS, mask, ids, batch_size=2, ridge=1.0, team=team()))
    found["errors"] = torch.tensor([(fit.before, fit.after) for fit in fits])
    columns = {name: rows_at_lead(part) for name, part in outputs.extract(mask).items()}
    outputs.reset()
    found["loss of dense"] = torch.tensor(mean_loss(model, ids, 2, team()))
    whole = columns if is_lead() else dict.fromkeys(columns)
    outputs.load(mask, {name: rows_from_lead(whole[name]) for name in columns})
    found["loss of refitted"] = torch.tensor(mean_loss(model, ids, 2, team()))
    outputs.reset()
    return found | columns | learnt_by(model, student)


@torch.no_grad()
def most_weight_bytes(model: PreTrainedModel) -> int:
    """The most bytes of float32 tensors that a process holds in a forward pass of one token."""
    sizes: list[int] = []

    def look(*_: object) -> None:
        tensors = [thing for thing in gc.get_objects() if type(thing) in (Tensor, Parameter)]
        storages = [t.untyped_storage() for t in tensors if t.dtype == torch.float32]
        sizes.append(sum({s.data_ptr(): s.nbytes() for s in storages}.values()))

    gc.collect()
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    hooks = [linear.register_forward_hook(look) for linear in linears]
    model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=False)
    for hook in hooks:
        hook.remove()
    return max(sizes)


def main(folders: list[str]) -> None:
    dist.init_process_group("gloo")
    for folder in map(Path, folders):
        model = load_divided(folder, torch.device("cpu"), "float32")
        held = torch.zeros(dist.get_world_size(), dtype=torch.int64)
        held[dist.get_rank()] = most_weight_bytes(model)
        dist.all_reduce(held)
        weights = disturbed(load_file(folder / WEIGHTS_FILE))
        student = learner(
            read_config(folder), iter(weights.items()), torch.device("cpu"), torch.float32
        )
        results = results_of(model, student)
        if is_lead():
            save_file({**results, "held": held}, folder / RESULTS)
        del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
