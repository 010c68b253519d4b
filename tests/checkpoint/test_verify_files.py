"""What `verify` tells of the files beside the weights, whatever the manifest says of them."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.validate import read_stored_model
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.checkpoint.verify_answers import greedy_tokens
from grasp_deploy.checkpoint.verify_files import (
    Difference,
    NotProven,
    check_companions,
    check_files,
)
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.checkpoint.write.quantize import quantize
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import manifest_of
from grasp_deploy.pruning.units import UnitTable
from tests.checkpoint.test_equivalence import random_plan
from tests.cli.command import edit_json
from tests.documents import ABSENT
from tests.tiny import VARIANTS, save_tiny

INDEX_FILE = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense bfloat16 model in several files, whose config.json says float32."""
    folder = tmp_path_factory.mktemp("base") / "model"
    model = save_tiny("llama", folder, dtype=torch.bfloat16)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    edit_json(folder / "config.json", dtype="float32")
    (folder / "LICENSE.txt").write_text("free")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


@pytest.fixture(scope="module")
def made(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of it. Shared: copy it before changing anything."""
    output = tmp_path_factory.mktemp("made") / "out"
    export(random_plan(base), base, output)
    return output


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def sidecar_files(folder: Path, base: Path | None, plan: Plan | None = None) -> str:
    dense = None if base is None else read_stored_model(base)
    plan = plan or load_plan(folder / PLAN_FILE)
    return check_companions(read_stored_model(folder), plan, dense)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", "{}", "tokenizer_config.json is not what an export"),
        ("LICENSE.txt", None, "LICENSE.txt is missing, and would be the base model's"),
        ("added_tokens.json", "{}", "no export writes added_tokens.json"),
        ("modeling_grasp.py", "import os", "modeling_grasp.py is not what an export"),
        (INDEX_FILE, "{}", f".*{INDEX_FILE} does not fit"),
        (INDEX_FILE, None, f"there is no file .*{INDEX_FILE}"),
    ],
)
def test_a_file_that_was_changed(
    folder: Path, base: Path, name: str, content: str | None, words: str
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
        edit_json(folder / "manifest.json", sha256={**manifest_of(folder), name: ""})
    with pytest.raises((Difference, InputError), match=f"^{words}"):
        sidecar_files(folder, base)


@pytest.mark.parametrize(
    ("key", "value", "needs_base"),
    [
        ("auto_map", {"AutoModel": "their/code--x.Y"}, False),
        ("intermediate_size", 4096, False),
        ("num_key_value_heads", 1, False),
        ("eos_token_id", 3, True),
    ],
)
def test_a_config_that_was_changed(
    folder: Path, base: Path, key: str, value: object, needs_base: bool
) -> None:
    """What plan and family decide is checked without the base model too."""
    edit_json(folder / "config.json", **{key: value})
    for dense in [base] if needs_base else [base, None]:
        with pytest.raises(Difference, match=f"config.json is not what an export.*its {key}"):
            sidecar_files(folder, dense)


def test_an_engine_that_gives_other_tokens_is_found(folder: Path) -> None:
    given = partial(greedy_tokens, load(folder, device="cpu", dtype="float32"))

    def served(directory: Path, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        tokens = given(torch.tensor(prompts), new_tokens)
        tokens[2][5] += wrong
        return tokens

    wrong = 0
    *_, last = verify(folder, without_base=True, served=served)
    assert (last.name, last.outcome) == ("served", "proven")
    wrong = 1
    *_, last = verify(folder, without_base=True, served=served)
    assert last.outcome == "wrong" and "differ first at prompt 2, token 5: reloaded" in last.detail


def test_of_a_quantised_checkpoint_the_plain_one_is_served(
    demo_checkpoint: Path, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors comes with vLLM")
    quantize(demo_checkpoint, "int8", tmp_path / "int8")
    given = partial(greedy_tokens, load(demo_checkpoint, device="cpu", dtype="float32"))
    asked = []

    def served(directory: Path, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        asked.append(directory)
        return given(torch.tensor(prompts), new_tokens)

    checks = verify(tmp_path / "int8", plain=demo_checkpoint, served=served)
    links = [check.name for check in checks]
    assert links[-3:] == ["served, plain", "files, quantised", "quantised"]
    assert asked == [demo_checkpoint]


def test_a_platform_that_cannot_serve_it_is_told(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "base", head_dim=16)
    export(random_plan(tmp_path / "base"), tmp_path / "base", tmp_path / "out")
    with pytest.raises(InputError, match="the model's heads are 16 wide"):
        list(verify(tmp_path / "out", without_base=True, platform="cpu"))


def test_without_the_base_model_what_comes_from_it_is_not_proven(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    edit_json(folder / "config.json", rope_theta=1.0)
    with pytest.raises(NotProven, match=r"nobody vouches for .*tokenizer.*nor for config.json"):
        sidecar_files(folder, None)
    (folder / "modeling_grasp.py").write_text("import os")
    with pytest.raises(Difference, match="modeling_grasp"):
        sidecar_files(folder, None)


def test_groups_of_linear_attention_are_not_the_dense_models(tmp_path: Path) -> None:
    """The first layer of a Qwen3.5 has none, and here every other layer has lost some."""
    save_tiny(directory=tmp_path / "base", **VARIANTS["qwen3-5"])
    plan, mask = (made := random_plan(tmp_path / "base")), made.mask.clone()
    units = UnitTable.of_layers(plan.dense_layers)
    for layer, (_, groups) in enumerate(plan.dense_layers):
        mask[units.kv(layer)] = torch.arange(groups) == 0
    export(replace(plan, mask=mask), tmp_path / "base", tmp_path / "out")
    with pytest.raises(NotProven, match="without the base model"):
        sidecar_files(tmp_path / "out", None)


def test_what_another_release_wrote_is_not_proven(folder: Path, base: Path) -> None:
    plan = load_plan(folder / PLAN_FILE)
    plan = replace(plan, provenance={**plan.provenance, "versions": {"grasp_deploy": "0.0.9"}})
    assert "only manifest.json vouches" in sidecar_files(folder, base, plan)
    (folder / "modeling_grasp.py").write_text("import os")
    (folder / "LICENSE.txt").unlink()
    edit_json(folder / "config.json", transformers_version=ABSENT)
    words = r"0.0.9 .*LICENSE.txt is missing.*transformers_version.*modeling_grasp.py "
    with pytest.raises(NotProven, match=words):
        sidecar_files(folder, base, plan)
    (folder / "chat_template.jinja").write_text("another")
    with pytest.raises(Difference, match=r"chat_template.jinja is not what an export"):
        sidecar_files(folder, base, plan)


@pytest.mark.parametrize(
    ("name", "words"),
    [("../model", "or one outside of its folder"), ("n" * 300, "nnn is missing")],
)
def test_a_manifest_names_files_of_its_folder(folder: Path, name: str, words: str) -> None:
    edit_json(folder / "manifest.json", sha256={**manifest_of(folder), name: ""})
    with pytest.raises(Difference, match=words):
        check_files(folder)
