"""What a model card says, whatever its base states, and how a record of quality renews it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from grasp_deploy.checkpoint.card.model_card import (
    CARD_FILE,
    QUALITY_FILE,
    card_metadata,
    intact_plan,
    lasting_files,
    metadata_block,
    model_card,
    renew_card,
)
from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.checkpoint.format.shapes import DTYPES, dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import manifest_of, refuse_existing
from tests.checkpoint.test_equivalence import random_plan
from tests.cli.command import tree
from tests.documents import HEALING
from tests.evaluate.quality.rows import corpus, task
from tests.tiny import VARIANTS, save_tiny

Rows = list[dict[str, Any]]


def card(folder: Path, quality: dict[str, Any] | None = None, **changes: Any) -> str:
    """The card of a checkpoint, with `changes` of what its plan says."""
    plan, config = load_plan(folder / PLAN_FILE), read_config(folder)
    plan = replace(plan, provenance={**plan.provenance, **changes})
    shapes = dense_shape(config), model_shape(config)
    return model_card(plan, *shapes, quality, from_base=card_metadata(folder))


def section(folder: Path, corpora: Rows, tasks: Rows) -> list[str]:
    """Lines of a card that stand under its heading of quality."""
    verdict = quality_verdict(corpora, tasks)
    quality = {"verdict": verdict, "corpora": corpora, "tasks": tasks}
    return card(folder, quality).partition("## Quality\n\n")[2].splitlines()


def test_an_export_has_the_card_without_a_record(demo_checkpoint: Path) -> None:
    text = (demo_checkpoint / "README.md").read_text()
    assert text == card(demo_checkpoint)
    assert "## Quality\n\nNot measured: run `grasp-deploy evaluate card DIR`." in text


@pytest.mark.parametrize(
    ("changes", "hub_id", "option"),
    [
        ({"model": "/home/me/a model"}, None, "'PATH/TO/a model'"),
        ({"model": "/home/me/a"}, "org/a", "org/a"),
        ({"model": "org/b", "revision": "c0ffee"}, "org/a", "org/b"),
    ],
)
def test_the_command_names_a_base_that_the_reader_can_have(
    demo_checkpoint: Path, changes: dict[str, Any], hub_id: str | None, option: str
) -> None:
    stated = load_plan(demo_checkpoint / PLAN_FILE).provenance["config"]
    text = card(demo_checkpoint, **changes, config={**stated, "base_model_id": hub_id})
    assert f"export DIR/plan.grasp --model {option} --output AGAIN" in text
    assert f"verify DIR --model {option}\n" in text


def test_remote_code_is_not_offered_where_vllm_has_no_linear_attention(
    demo_checkpoint: Path, tmp_path: Path
) -> None:
    save_tiny(directory=tmp_path / "base", **VARIANTS["qwen3-5"])
    export(random_plan(tmp_path / "base"), tmp_path / "base", tmp_path / "hybrid")
    line = "vllm serve DIR --trust-remote-code"
    cards = [(each / CARD_FILE).read_text() for each in (demo_checkpoint, tmp_path / "hybrid")]
    assert [line in text for text in cards] == [True, False]
    assert all("vllm serve DIR    " in text for text in cards)


def test_dense_beside_pruned(demo_checkpoint: Path) -> None:
    fewshot = task("piqa", 0.8, 0.7, num_fewshot=5)
    lines = section(demo_checkpoint, [corpus("c4", 0.0953102, error=0.004)], [fewshot])
    assert lines[0].startswith("**Needs healing**: on c4, which it did not learn from")
    # exp(0.0953102) is 1.1.
    assert "| c4 (test) | 20,470 in sequences of 2,048 | 8.00 | 8.80 | 0.095 ± 0.004 |" in lines
    row = "| piqa (acc_norm, 5 examples) | 2,500 | 25.0 | 80.0 ± 1.0 | 70.0 ± 1.0 | -10.0 ± 1.0 |"
    assert row in lines
    assert not any("†" in line for line in lines)


def test_what_was_learnt_from_is_marked_and_explained(demo_checkpoint: Path) -> None:
    corpora = [corpus("c4", 0.2, True), corpus("a|b", 0.2)]
    lines = section(demo_checkpoint, corpora, [])
    for start in ("| c4 (test)† |", "| a\\|b (test) |", "† The model learnt from this corpus"):
        assert any(line.startswith(start) for line in lines)


def test_what_made_the_model_is_told(demo_checkpoint: Path) -> None:
    stated = load_plan(demo_checkpoint / PLAN_FILE).provenance["config"]
    for method, said in {"grasp": "gates", "progressive": "rounds", "m:f": "`m:f`"}.items():
        assert said in card(demo_checkpoint, config={**stated, "method": method})
    plain, healed = card(demo_checkpoint), card(demo_checkpoint, healing=[HEALING])
    assert load_plan(demo_checkpoint / PLAN_FILE).provenance["computed_in"] in DTYPES
    assert "Calibrated in float16 on " in card(demo_checkpoint, computed_in="float16")
    assert "`calibration.jsonl`" in plain and "Recovered" not in plain
    assert "`heal.txt`" in healed and "folder/heal.txt" not in healed
    assert "from 0.5000 to 0.3750 nats per token, and the loss to 2.2500" in healed
    only_healed = card(demo_checkpoint, healing=[HEALING], fitted=["a"], compensation=[])
    assert "Compensation: " in plain and "Compensation: " not in only_healed
    hub = {"source": "hf:org/name:en", "sequences": 64, "sequence_length": 32}
    assert " 32 tokens of `hf:org/name:en`." in card(demo_checkpoint, calibration=hub)
    shares = {"limit": 0.6, "kept_cost": 0.59864, "total_cost": 1.0}
    assert "| 1 | 0.59864 | 59.9% |" in card(demo_checkpoint, budget=shares)
    losses = {"heldout_dense": None, "heldout_pruned": None}
    assert "held-out tokens" not in card(demo_checkpoint, losses=losses)
    for sequences, warns in ((2, True), (500, False)):
        told = card(demo_checkpoint, calibration={**hub, "heldout_sequences": sequences})
        assert f"On {31 * sequences:,} held-out tokens the loss went from" in told
        assert ("(so few tokens tell little)" in told) is warns


def test_what_a_strangers_plan_names_is_no_markdown(demo_checkpoint: Path) -> None:
    evil = "a`\n\n# Install\n\n```\n<img src=x>|<b>"
    stated = load_plan(demo_checkpoint / PLAN_FILE).provenance["config"]
    for revision in (None, "main"):
        text = card(
            demo_checkpoint,
            model=evil,
            revision=revision,
            cost_model=evil,
            versions={"grasp_deploy": evil},
            config={**stated, "method": evil},
            calibration={"source": evil, "sequences": 1, "sequence_length": 2},
        )
        _, head, body = text.split("---\n", 2)
        assert "\n" not in yaml.safe_load(head).get("base_model", "")
        body = re.sub(r"(?ms)^```.*?^```$", "", body)
        outside = re.sub(r"`[^`\n]*`", "", body)
        assert not any(part in outside for part in ("`", "# Install", "<img", "<b>", "|<"))


HEAD = "---\nlicense: llama2\nlanguage: [en, no]\ntags: chat\nmodel-index: [1]\n---\n# Model\n"


def block(from_base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    config = {"base_model_id": changes.pop("base_model_id", None)}
    calibration = {"source": "mixture", "parts": changes.pop("parts", [])}
    provenance = {"model": "/a/folder", "revision": None, "config": config, **changes}
    ones = torch.ones(1)
    plan = Plan(ones, ones.bool(), ones, {"calibration": calibration, **provenance})
    head: dict[str, Any] = yaml.safe_load(metadata_block(plan, from_base))
    return head


@pytest.mark.parametrize(
    "text", [HEAD, HEAD.removesuffix("\n# Model\n"), "\ufeff" + HEAD, "\n" + HEAD]
)
def test_what_the_base_model_states_is_taken_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(text)
    stated = card_metadata(tmp_path)
    assert stated == {"license": "llama2", "language": ["en", "no"], "tags": "chat"}
    head = block(stated)
    assert (head["license"], head["language"]) == ("llama2", ["en", "no"])
    assert head["tags"] == ["pruned", "grasp-deploy", "vllm", "chat"]
    assert "base_model" not in head, "a folder's path stays private"
    written = f"---\n{yaml.safe_dump(head)}---\n"
    (tmp_path / "README.md").write_text(written)
    assert block(card_metadata(tmp_path)) == head, "a card that is renewed keeps it"


@pytest.mark.parametrize(
    "text", ["", "# Model\n", "---\n: [\n---\n", "---\n- a\n---\n", "---\nlicense: {a: 1}\n---\n"]
)
def test_a_card_that_states_nothing(text: str, tmp_path: Path) -> None:
    assert card_metadata(tmp_path) == {}
    (tmp_path / "README.md").write_text(text)
    assert card_metadata(tmp_path) == {}


def test_a_plain_checkpoint_is_not_quantised_whatever_its_base_states(folder: Path) -> None:
    (folder / CARD_FILE).write_text("---\nquantised_by: w4a16\nlicense: mit\n---\n")
    text = card(folder)
    assert "license: mit\n" in text and "quantised" not in text


def test_the_base_models_name_on_the_hub() -> None:
    assert block({}, base_model_id="org/name")["base_model"] == "org/name"
    assert block({}, model="org/other", revision="abc")["base_model"] == "org/other"


RENEWED = {QUALITY_FILE, CARD_FILE, "manifest.json"}


@pytest.fixture
def folder(demo_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_checkpoint, tmp_path / "pruned"))


def record(excess: float = 0.02) -> dict[str, Any]:
    corpora = [corpus("c4", excess)]
    return {"verdict": quality_verdict(corpora, []), "corpora": corpora, "tasks": []}


def renew(folder: Path, quality: dict[str, Any]) -> None:
    renew_card(folder, intact_plan(folder), quality, lasting_files(folder))


def check_files(folder: Path) -> tuple[str, str]:
    first = next(verify(folder, without_base=True))
    return first.outcome, first.detail


def test_only_card_record_and_manifest_change(folder: Path) -> None:
    before = tree(folder)
    renew(folder, record())
    after = tree(folder)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == RENEWED and after.keys() - before.keys() == {QUALITY_FILE}
    assert json.loads((folder / QUALITY_FILE).read_text()) == record()
    card = (folder / CARD_FILE).read_text()
    assert "**Usable as a drop-in**: on c4" in card
    assert card.startswith("---\nlicense: apache-2.0\nlanguage: en\n"), "as the base model's is"
    assert manifest_of(folder).keys() == after.keys() - {"manifest.json"}
    assert check_files(folder)[0] == "proven"
    renew(folder, record(0.9))
    assert "**Broken**" in (folder / CARD_FILE).read_text()
    renew(folder, record())
    assert tree(folder) == after, "the same figures give the same bytes"
    assert [path.name for path in folder.parent.iterdir()] == ["pruned"], "no lock is left"
    refuse_existing(folder, overwrite=True)  # what a card adds may be replaced with the rest


def test_a_changed_file_is_found_and_not_blessed(folder: Path) -> None:
    stated = manifest_of(folder)["generation_config.json"]
    (folder / CARD_FILE).write_text("changed")  # will be replaced
    renew(folder, record())
    assert check_files(folder)[0] == "proven"
    plan = intact_plan(folder)
    (folder / "generation_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"generation_config.json is not the file that manifest"):
        intact_plan(folder)
    renew_card(folder, plan, record(), lasting_files(folder))
    assert manifest_of(folder)["generation_config.json"] == stated
    assert check_files(folder)[0] == "wrong"
    for name in ("generation_config.json", "manifest.json"):
        (folder / name).unlink()
        with pytest.raises(InputError, match=f"{name} is missing"):
            intact_plan(folder)
