"""Predicted needs: figures derived by hand for one shape, and what more processes change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.read.divided import load_divided
from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.compression.needs.case import case_of
from grasp_deploy.compression.needs.dry_run import needs_offload, ways_of
from grasp_deploy.compression.needs.memory import Needs, weight_bytes
from grasp_deploy.compression.needs.seconds import Rates, Work, seconds_of, work_of
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.demo.run import MODEL
from grasp_deploy.pruning.ranks import join_alone, leave

LLAMA_2_7B = Path(__file__).parents[2] / "benchmarks" / "configs" / "llama-2-7b.json"
SHAPE = model_shape(read_config(LLAMA_2_7B))
CONFIG = CompressConfig(model="m", keep=0.6)
D, F, LAYERS, VOCABULARY, TOKENS = 4096, 11008, 32, 32000, 512


@pytest.fixture(scope="module")
def needs() -> Needs:
    return Needs.of(*case_of(CONFIG, SHAPE, on_gpu=True))


def of(needs: Needs, processes: int = 1, offload: bool = False) -> Needs:
    return Needs.of(replace(needs.case, processes=processes, offload=offload), SHAPE)


def test_terms_of_one_process(needs: Needs) -> None:
    stages = {phase.stage: phase for phase in needs.stages()}
    assert stages["rounds"].device["weights"] == SHAPE.weight_bytes == 13_476_831_232
    # Two hidden states of bfloat16 for each of 256 sequences; at the 64 of a round, half of one.
    assert stages["compensation"].device["hidden states"] == 2 * 2 * 256 * TOKENS * D
    # Four matrices of k x k, cross products, target and solution in float64; columns in bfloat16.
    matrices = 8 * (4 * F * F + 3 * D * F) + 2 * D * F
    assert stages["compensation"].device["float64 matrices"] == matrices
    assert stages["gates"].device["logits"] == 12 * TOKENS * VOCABULARY
    assert stages["compensation"].host["dense output projections"] == 2 * LAYERS * D * (F + D)


@pytest.mark.parametrize(
    ("stage", "counted_bytes"),
    [("scales", 16_495_783_180 - 13_482_484_224), ("rounds", 17_787_787_280 - 13_485_310_464)],
)
def test_the_stages_own_code_takes_as_much(needs: Needs, stage: str, counted_bytes: int) -> None:
    """As counted on the meta device: benchmarks/results/peak_memory-llama-2-7b.json."""
    phases = [phase.device for phase in needs.phases if phase.stage == stage]
    if stage == "rounds":  # scoring, not the refit behind it
        phases = [terms for terms in phases if {"gradient moments", "hidden states"} <= set(terms)]
    predicted = max(sum(terms.values()) - terms["weights"] for terms in phases)
    assert predicted == pytest.approx(counted_bytes, rel=0.005)


def test_processes_divide_weights_and_gather_them(needs: Needs) -> None:
    two, offloaded = of(needs, 2), of(needs, offload=True)
    norms = (2 * LAYERS + 1) * D
    assert weight_bytes(two.case) == needs.case.dtype_bytes * (
        (SHAPE.parameters - norms) // 2 + norms
    )
    gates = next(phase for phase in two.phases if phase.stage == "gates")
    assert gates.device["gathered weights"] == 2 * 2 * VOCABULARY * D  # arriving, and in use
    assert "weights" not in offloaded.phases[0].device
    assert offloaded.phases[0].host["weights that wait"] == SHAPE.weight_bytes
    assert offloaded.device_bytes < two.device_bytes < needs.device_bytes


def test_the_lead_holds_the_columns_of_all_rows(needs: Needs) -> None:
    two = of(needs, 2)
    columns = needs.case.keep * LAYERS * D * (F + D)
    last = two.phases[-1]
    assert last.lead_bytes == pytest.approx(4 * columns, rel=1e-3), "in float32"
    assert last.host["refitted columns"] == pytest.approx(last.lead_bytes / 2, rel=1e-3)
    assert two.lead_resident_bytes > two.resident_bytes + last.lead_bytes / 2
    for alone in (needs, of(needs, offload=True)):
        assert alone.phases[-1].lead_bytes == 0, "the only process has them all"
    assert two.machine_bytes == two.lead_resident_bytes + two.resident_bytes


def test_disk(needs: Needs) -> None:
    columns = needs.case.keep * LAYERS * D * (F + D)
    assert needs.case.keep == pytest.approx(0.6, abs=0.01)
    assert needs.disk["refitted columns"] == pytest.approx(2 * 2 * columns)
    assert needs.disk["refitted and scaled columns"] == pytest.approx(4 * columns)
    assert needs.disk["own text"] == 8 * 512 * TOKENS, "all text is its own"


def test_time_is_work_over_rates(needs: Needs) -> None:
    case = replace(needs.case, on_gpu=False, processes=2)
    gates = work_of(case)["gates"]
    # 64 steps forward and backward of one sequence; 5 times 32 held-out ones in pairs.
    weights = LAYERS * (4 * D * D + 3 * D * F) + VOCABULARY * D
    per_sequence = TOKENS * (2 * weights + 2 * TOKENS * D * LAYERS)
    assert gates.flops == (64 * 2 + 5 * 16) * per_sequence
    assert gates.gathered_bytes == (64 * 2 + 5 * 16) * weights * case.dtype_bytes / 2
    shared, own = (Rates("cpu", 1e12, 2e11, 1e11, threads, cores=2) for threads in (2, 1))
    assert (shared.crowding(2), own.crowding(2), own.crowding(4)) == (2, 1, 2)
    assert seconds_of(case, shared)["gates"] > seconds_of(case, own)["gates"]
    assert Work(1, 2, 3, 4) + Work(1, 1, 1, 1) * 2 == Work(3, 4, 5, 6)


def test_a_gpu_too_small_has_weights_wait_on_the_cpu(needs: Needs) -> None:
    enough = int(needs.device_bytes / 0.9) + 1
    assert not needs_offload(CONFIG, SHAPE, 1, enough)
    assert needs_offload(CONFIG, SHAPE, 1, enough - 2)
    assert not needs_offload(CONFIG, SHAPE, 2, enough - 2), "halves fit"
    on_cpu = ways_of(replace(needs.case, on_gpu=False), SHAPE)
    assert not any(way.case.offload for way in on_cpu), "they are there anyhow"


def test_weights_that_wait_on_the_cpu_give_the_same_logits() -> None:
    ids, device = torch.arange(20)[None], torch.device("cpu")
    expected = load_checked(MODEL, device, "float32", "sdpa")(input_ids=ids).logits
    join_alone()
    try:
        model = load_divided(MODEL, device, "float32", "sdpa", offload=True)
        assert torch.equal(model(input_ids=ids).logits, expected)
    finally:
        assert leave()
