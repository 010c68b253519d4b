"""`compress`: its JSON, and the config that repeats a run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grasp_deploy.cli.compressed import print_compressed, print_family, print_recovered
from grasp_deploy.config.compress_config import CompressConfig
from tests.cli.command import INSPECTED, assert_nothing_changes, compress, document
from tests.documents import HEALING

COMPRESSED = INSPECTED | {
    *("kept_cost", "budget", "total_cost", "kept_ffn_share", "kept_kv_share"),
    *("own_text_seconds", "start_seconds", "gate_learning_seconds", "scale_seconds"),
    "peak_memory_bytes",
}


def test_its_record(tiny_folder: Path, work: Path) -> None:
    ended = compress(tiny_folder, "--set", "scale-epochs=1", "--json")
    record = json.loads(ended.stdout)
    assert record.keys() >= COMPRESSED
    assert record["kept_cost"] <= record["budget"] <= 0.6 * record["total_cost"] * (1 + 1e-12)
    assert 0 < record["kept_ffn_share"] < 1
    assert record["start_seconds"] > 0 and record["scale_seconds"] > 0
    assert record["peak_memory_bytes"] > 2**20
    for stage in ("cutting in rounds", "calibrating scales", "writing tensors", "nats from"):
        assert stage in ended.stderr
    inspected = document("inspect", work / "out", "--json")
    assert {key: record[key] for key in INSPECTED} == {key: inspected[key] for key in INSPECTED}


def test_the_config_that_a_run_writes_repeats_it(pruned: Path, work: Path) -> None:
    config = ("--config", pruned / "compress_config.json")
    document("compress", "-o", "again", *config, "--json")
    weights = "model.safetensors"
    assert (work / "again" / weights).read_bytes() == (pruned / weights).read_bytes()
    # What is given on the command line wins, and one kind of budget replaces the other.
    record = document("compress", "-o", "other", *config, "--weights", "500KiB", "--json")
    assert 0.8 * 500 * 2**10 < record["weight_bytes"] <= 500 * 2**10


def test_what_the_end_tells_goes_by_the_record(
    tiny_folder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lost tensor parallelism, and the way on from what was lost on text."""
    record = json.loads(compress(tiny_folder, "--json").stdout)
    config = CompressConfig("model", keep=0.6)
    words = "tensor parallelism: 1 alone divides every layer, where 1, 2 and 4 divided the dense"
    for sizes, told in (([1, 2], False), ([1], True)):
        print_compressed({**record, "tensor_parallel_sizes": sizes}, config)
        assert (words in capsys.readouterr().out) is told
    for lost, words in (
        (0.02, "wrote out; serve it: grasp-deploy serve out"),
        (0.2, "and is no drop-in. Recovery may win some of it back: a million tokens"),
        (0.7, "even on the kind of text that it learnt from. Keep more."),
    ):
        print_compressed(
            {**record, "heldout_loss_pruned": record["heldout_loss_dense"] + lost}, config
        )
        said = capsys.readouterr().out
        assert words in said and "(so few tokens tell little)" in said


def test_what_a_bound_a_family_and_a_recovery_came_to(
    tiny_folder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads(compress(tiny_folder, "--json").stdout)

    def said(show: Callable[..., None], *given: object) -> str:
        capsys.readouterr()
        show(*given)
        return " ".join(capsys.readouterr().out.split())

    step = {"keep": 0.55, "excess": 0.5, "excess_error": 0.02}
    bound = {"nats": 0.3, "keep": 0.6, "excess": 0.25, "excess_error": 0.01, "next": step}
    config = CompressConfig("model", keep=0.6)
    text = said(print_compressed, {**record, "bound": bound}, config)
    costs = "bound of 0.3000 nats: keep 0.6 costs +0.2500 ± 0.0100 nats per token on it; "
    few = " (so few tokens tell little)"
    assert f"{costs}keep 0.55 would have cost +0.5000 ± 0.0200 nats per token{few}" in text
    noisy = {**record, "bound": {**bound, "next": {**step, "excess": -0.1, "excess_error": 0.5}}}
    assert f"-0.1000 ± 0.5000 nats per token, over it with that error{few}" in said(
        print_compressed, noisy, config
    )
    last = {**record, "bound": {**bound, "next": None}}
    assert f"{costs}no smaller budget is possible" in said(print_compressed, last, config)

    dense = {**record, "heldout_loss_dense": 2.0}
    won, lost = ({**dense, "output": f"out/{x}", "heldout_loss_pruned": x} for x in (1.75, 2.7))
    text = said(print_family, [won, lost], config, Path("out"))
    flatters = "on 15 held-out tokens of the model's own text, which flatters (so few tokens tell"
    assert flatters in text
    assert flatters.replace("the model's own text, which flatters", "calibration text") in said(
        print_family, [won], replace(config, calibration=("a.txt",)), Path("out")
    )
    assert "1.750" in text and "-0.250" in text and "+0.700" in text
    assert "2.7 lost 0.5 nats or more" in text
    assert "wrote out; serve a member: grasp-deploy serve out/1.75" in text
    assert "serve a member" not in said(print_family, [lost], config, Path("out"))

    healed = {**record, "recovery": {**HEALING, "heldout_tokens": 99, "seconds": 1.0}}
    text = said(print_recovered, healed)
    assert "went from 0.5000 to 0.3750 nats per token" in text
    assert "on 99 held-out tokens, nats per token: 2.000 dense, 2.500 before, 2.250 recov" in text
    assert "wrote out; it lost 0.25 nats" in text and "More tokens of recovery may" in text


@pytest.mark.parametrize("odd", [{"RANK": "-1"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "x"}])
def test_variables_that_torchrun_does_not_set_are_refused(
    odd: dict[str, str], tiny_folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **odd}
    for name, value in {"TORCHELASTIC_RUN_ID": "none", **variables}.items():
        monkeypatch.setenv(name, value)
    assert_nothing_changes(tiny_folder, *odd, *odd.values())
