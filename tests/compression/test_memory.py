"""Predicted memory and passes by hand for one shape, and what happens where memory runs out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.compression import frozen_model as room
from grasp_deploy.compression.budget_options import budget_for, shape_within
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.ranks import is_joined
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.stage_memory import Way
from grasp_deploy.compression.stages import passes_of
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError, is_out_of_memory
from grasp_deploy.files.json_files import read_json
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.distilling import last_hidden
from grasp_deploy.pruning.gates import gated, scaled_norms, straight_through
from grasp_deploy.pruning.layout import decoder_layers, norms_in
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.training import freeze
from grasp_deploy.pruning.units import UnitTable
from grasp_deploy.report.progress import share_done
from tests.compression.conftest import MakeConfig
from tests.tiny import tiny_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHAPE = model_shape(read_config(BENCHMARKS / "configs" / "llama-2-7b.json"))
CONFIG = CompressConfig(model="m", keep=0.6)
D, F, LAYERS, VOCABULARY, TOKENS = 4096, 11008, 32, 32000, 512
PROCESS = 525 * 2**20
LEARNT = ("gates", "scales")


@pytest.fixture(scope="module")
def one() -> Way:
    pruned = shape_within(budget_for(CONFIG, SHAPE, torch.device("cpu")), SHAPE)
    return Way(CONFIG, SHAPE, pruned, on_gpu=True)


def test_terms_of_one_process_and_of_two(one: Way) -> None:
    assert one.stages["rounds"]["weights"] == SHAPE.weight_bytes == 13_476_831_232
    # Two hidden states of bfloat16 for each of 256 sequences; at the 64 of a round, half of one.
    refit = one.stages["compensation"]
    assert refit["hidden states"] == 2 * 2 * 256 * TOKENS * D
    sandwich = replace(SHAPE, family=replace(SHAPE.family, model_type="gemma3_text"))
    with_norms_behind = replace(one, shape=sandwich).stages["compensation"]
    assert with_norms_behind["hidden states"] == 3 * 2 * 256 * TOKENS * D
    # Four matrices of k x k; cross products, target and solution in float64; columns in bfloat16.
    assert refit["float64 matrices"] == 8 * (4 * F * F + 3 * D * F) + 2 * D * F
    of_text = replace(one, config=replace(CONFIG, objective="text")).stages
    assert of_text["gates"]["head, logits and loss"] == 12 * TOKENS * VOCABULARY
    # Of the dense model every hidden state that gates and scales learn from, on the CPU.
    here = replace(one, on_gpu=False, config=replace(CONFIG, dtype="bfloat16")).stages
    for stage in ("predictions", "gates", "compensation", "scales"):
        assert here[stage].pop("dense model's hidden states") == 2 * 512 * TOKENS * D
        assert here[stage].keys() == one.stages[stage].keys()
    # Four million logits of both models at once there, and on a GPU all 16 million of a step.
    heads = [of[stage]["head, logits and loss"] for of in (here, one.stages) for stage in LEARNT]
    assert heads == [20 * 2**22] * 2 + [20 * TOKENS * VOCABULARY] * 2
    dense = LAYERS * D * (F + D)
    kept = round((one.machine_bytes - PROCESS - 2 * dense) / 6)
    assert kept == pytest.approx(0.6 * dense, rel=0.01)
    two, offloaded = replace(one, processes=2), replace(one, offload=True)
    assert two.stages["gates"]["weights"] == SHAPE.weight_bytes / 2
    # An MLP, which is larger than the head, arrives and is in use.
    assert two.stages["own-text"]["gathered weights"] == 2 * 3 * 2 * D * F
    # While it scores an MLP, the first of two has its attention's sums, and the next MLP's.
    scoring = replace(two, config=replace(CONFIG, compensation=False)).stages["rounds"]
    assert scoring["float64 matrices"] == 8 * (5 * F * F + D * D)
    assert "weights" not in offloaded.stages["gates"]
    assert offloaded.machine_bytes == one.machine_bytes + SHAPE.weight_bytes
    assert offloaded.device_bytes < two.device_bytes < one.device_bytes
    # The first of two has the scaled columns of all rows, beside everybody's own.
    assert two.machine_bytes == one.machine_bytes + PROCESS + 4 * kept


@pytest.mark.parametrize(
    ("stage", "counted_bytes"),
    [("gates", 16_495_783_180 - 13_482_484_224), ("rounds", 17_787_787_280 - 13_485_310_464)],
)
def test_the_stages_own_code_takes_as_much(one: Way, stage: str, counted_bytes: int) -> None:
    """As counted on the meta device: benchmarks/results/peak_memory-llama-2-7b.json."""
    # In a round: scoring, not the refit behind it. Gates that learn the text.
    config = replace(CONFIG, compensation=stage != "rounds", objective="text")
    way = replace(one, config=config)
    terms = way.stages[stage]
    assert sum(terms.values()) - terms["weights"] == pytest.approx(counted_bytes, rel=0.005)


KEPT_ON = 128  # tokens


def kept_bytes(model: PreTrainedModel, units: UnitTable, mask: Tensor) -> int:
    """Bytes that a step of learning keeps for its backward pass, the model's own not counted."""
    held = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(part: Tensor) -> Tensor:
        kept[part.untyped_storage().data_ptr()] = part
        return part

    ids = torch.arange(KEPT_ON)[None] % model.config.vocab_size
    norms = len(norms_in(model).in_order(len(decoder_layers(model))))
    scales = torch.ones(norms * model.config.hidden_size, requires_grad=True)
    with gated(model, units) as gates, scaled_norms(model) as scaled:
        gates.assign(straight_through(torch.full_like(mask, 0.5).requires_grad_(), mask))
        scaled.assign(scales)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
            hidden = last_hidden(model, input_ids=ids)
    assert hidden.requires_grad
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in held)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_5_text", "qwen3_moe"])
def test_what_a_step_keeps(family: str, dtype: Any) -> None:
    """As autograd saves it, in layers of every kind."""
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 8}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    more = {"qwen3_moe": experts, "qwen3_5_text": {"linear_value_head_dim": 96}}.get(family, {})
    model = tiny_model(family, dtype=getattr(torch, dtype), **sizes, **more)
    freeze(model)
    shape = model_shape({**model.config.to_dict(), "dtype": dtype})
    config = replace(CONFIG, sequence_length=KEPT_ON, dtype=dtype, kv_multiple=1)
    budget = budget_for(config, shape, torch.device("cpu"))
    way = Way(config, shape, shape_within(budget, shape), on_gpu=True)
    mask = project(torch.zeros_like(budget.costs), budget).float()
    predicted = way.stages["gates"]["activations of a step"]
    assert predicted == pytest.approx(kept_bytes(model, budget.units, mask), rel=0.07)


def test_passes() -> None:
    expected = {
        "own-text": 512 + 4 * 50,
        "rounds": 5 * 6 * 64,
        "predictions": 480 + 32,
        "gates": 2 * 128 + 5 * 32,
        "compensation": 3 * 256 + 64,
        "scales": 2 * 480 + 5 * 32,
    }
    assert passes_of(CONFIG) == expected
    heldout_alone = passes_of(replace(CONFIG, method="progressive", scale_epochs=0))
    assert heldout_alone["predictions"] == 32
    assert heldout_alone["rounds"] == (5 * 6 - 3) * 64, "its last round refits nothing"
    again = passes_of(replace(CONFIG, gradient_checkpointing=True))
    assert again["rounds"] == 5 * (6 + 1) * 64, "each is computed twice for its gradients"
    assert passes_of(replace(CONFIG, scale_epochs=2))["predictions"] == 512
    # Each epoch draws other batches, which are read again.
    assert passes_of(replace(CONFIG, scale_epochs=2, batch_size=2))["predictions"] == 992
    del expected["predictions"]
    assert passes_of(replace(CONFIG, objective="text")) == expected
    recovered = 4 * 2000 + 2 * 32 * 5  # the dense model's, and three of what learns
    assert passes_of(replace(CONFIG, recover=2000 * TOKENS))["recovery"] == recovered


def test_a_method_of_ones_own_may_take_any_time(one: Way) -> None:
    """Its stage is told, with the weights that it needs at least, though no other follows."""
    own: dict[str, Any] = {"method": "mine:scores", "scale_epochs": 0, "compensation": False}
    config = replace(CONFIG, **own, calibration=("c4", "self=0"), objective="text")
    assert passes_of(config) == {"criterion": 0}
    assert replace(one, config=config).stages == {"criterion": {"weights": SHAPE.weight_bytes}}
    assert share_done(passes_of(config), "criterion", 0.5) == 0


def test_what_learns_takes_twelve_bytes_for_each_weight(one: Way) -> None:
    way = replace(one, config=replace(CONFIG, recover=10**6))
    two = replace(way, processes=2)
    learnt = way.pruned.parameters - 2 * VOCABULARY * D - D
    terms, of_two = way.stages["recovery"], two.stages["recovery"]
    assert terms["weights that learn"] == 12 * learnt == 2 * of_two["weights that learn"]
    assert way.device_bytes == sum(terms.values()) > one.device_bytes
    # In the CPU's memory: the best weights, and a copy of the state; of two all rows at the first.
    dense = 2 * LAYERS * D * (F + D)
    assert way.machine_bytes == PROCESS + dense + (2 + 12) * learnt
    assert two.machine_bytes == 2 * PROCESS + dense + (2 + 12 + 2) * learnt
    long = replace(way.config, recover=2 * 10**8, calibration=("c4", "self"))
    read = 195_313 * TOKENS  # half of 390,625 sequences are given
    assert replace(way, config=long).machine_bytes == PROCESS + dense + 2 * learnt + 1_400 * read
    here = replace(way, on_gpu=False, config=replace(way.config, dtype="bfloat16"))
    with_copies = SHAPE.weight_bytes + (2 + 12 + 4 + 2) * learnt  # to measure the rounded ones
    assert here.machine_bytes == PROCESS + dense + with_copies > here.device_bytes


@pytest.mark.parametrize("name", ["llama-1b", "llama-2-7b"])  # tied embeddings, and a head
def test_a_measured_step_of_recovery_takes_no_more_than_predicted(name: str) -> None:
    """One process divides its weights too: it gathers them, and ties nothing."""
    record = read_json(BENCHMARKS / "results" / f"recovery_step-{name}-h200.json", "")
    shape = model_shape(read_config(BENCHMARKS / "configs" / f"{name}.json"))
    config = replace(CONFIG, keep=float(record["settings"]["keep"]), recover=1)
    pruned = shape_within(budget_for(config, shape, torch.device("cpu")), shape)
    predicted = sum(Way(config, shape, pruned, on_gpu=True).stages["recovery"].values())
    assert 1 < predicted / record["peak_memory_bytes"] < 1.07


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        (
            "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling "
            "`cusolverDnCreate(handle)`",
            True,
        ),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", False),
    ],
)
def test_what_a_full_gpu_may_say(text: str, expected: bool) -> None:
    assert is_out_of_memory(RuntimeError(text)) is expected


def runs_out(stage: str, times: int = 1) -> OnProgress:
    """An `on_progress` that fails in the midst of a stage, as a GPU does that is too small."""
    left = iter(range(times))

    def follow(row: dict[str, Any]) -> None:
        if row["stage"] == stage and row["step"] > 1 and next(left, None) is not None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    return follow


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "may_offload", lambda run: True)


@pytest.fixture(scope="module")
def config(make_config: MakeConfig) -> CompressConfig:
    return make_config(keep=0.6, rounds=2, batch_size=4)


@pytest.fixture(scope="module")
def expected(config: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of a run that has the memory."""
    return compress(config, tmp_path_factory.mktemp("expected") / "out").plan


@pytest.mark.parametrize("stage", ["loading", "rounds", "predictions", "scales"])
def test_where_memory_runs_out_weights_wait_on_the_cpu(
    stage: str,
    config: CompressConfig,
    expected: Plan,
    as_on_gpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, from what the stages have saved; the result is the same."""
    if stage == "loading":
        first = lambda *_: runs_out(stage)({"stage": stage, "step": 2})  # noqa: E731
        monkeypatch.setattr(room, "load_checked", first)
    plan = compress(config, RunOptions(tmp_path / "out", on_progress=runs_out(stage))).plan
    assert torch.equal(plan.mask, expected.mask) and torch.equal(plan.scales, expected.scales)
    (said,) = [record for record in caplog.records if "weights in the CPU's memory" in record.msg]
    assert "Tried to allocate 2.00 GiB" in said.getMessage()
    assert not is_joined()


def test_a_second_time_it_ends_and_whole_weights_do_not_wait(
    config: CompressConfig, as_on_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RunOptions(tmp_path / "out", on_progress=runs_out("rounds", times=2))
    with pytest.raises(InputError, match=r"out of memory .*Tried to allocate"):
        compress(config, options)
    assert not is_joined()
    monkeypatch.undo()
    run = prepare(config)
    on_gpu = replace(run, device=torch.device("cuda"))
    assert room.may_offload(on_gpu) and not room.may_offload(run)
    whole = replace(config, method="mine:scores", rounds=CompressConfig.rounds)
    assert not room.may_offload(replace(on_gpu, config=whole))
