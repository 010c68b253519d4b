"""Quantised copies of a checkpoint: their numbers, what stands beside them, what is refused."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from grasp_deploy.checkpoint.card.model_card import intact_plan, lasting_files, renew_card
from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.limits import tensor_parallel_sizes
from grasp_deploy.checkpoint.quantised import eight_bit_bytes, four_bit_bytes
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.validate import config_and_shape
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.checkpoint.verify_files import check_files
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.checkpoint.write.quantize import SCHEMES, difference, quantize
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.json_files import write_json
from grasp_deploy.files.outputs import manifest_of
from tests.checkpoint.card.test_model_card import record
from tests.checkpoint.test_equivalence import random_plan
from tests.checkpoint.write.test_sidecar_files import byte_level_tokenizer
from tests.cli.command import assert_refused, document, edit_json, grasp_deploy, succeeded, tree
from tests.cli.test_verify import state_anew
from tests.tiny import logits_of, random_kept, save_tiny, slice_by_hand

pytest.importorskip("compressed_tensors", reason="compressed-tensors comes with vLLM")
IDS = torch.arange(48).view(2, 24) * 5 % 128


def decoded(stored: dict[str, Tensor], name: str) -> Tensor:
    """A matrix in float32, worked out from the format's description."""
    scale = stored[f"{name}_scale"].float()
    if name in stored:
        return stored[name].float() * scale
    packed = stored[f"{name}_packed"]  # eight of four bits in an int32, the first in the lowest
    steps = torch.stack([(packed >> 4 * place) & 15 for place in range(8)], dim=-1) - 8
    rows, columns = stored[f"{name}_shape"].tolist()
    return (steps.reshape(rows, scale.shape[1], -1) * scale[..., None]).reshape(rows, columns)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_matrices_are_as_near_as_their_bits_allow(
    scheme: str, demo_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    shape, plain = quantize(demo_checkpoint, scheme, folder), load_file(first_of(demo_checkpoint))
    stored = load_file(first_of(folder))
    assert shape.quantization == "compressed-tensors"
    for name, tensor in plain.items():
        if not name.endswith("_proj.weight"):
            assert torch.equal(stored[name], tensor)
            continue
        exact, found = tensor.float(), decoded(stored, name)
        if scheme == "fp8":  # three bits of mantissa, and a scale of bfloat16's eight
            smallest = stored[f"{name}_scale"].float() * 2**-9
            assert bool(((found - exact).abs() <= exact.abs() / 15 + smallest).all()), name
        elif scheme == "int8":
            half = stored[f"{name}_scale"].float() / 2
            most = exact.abs().amax(1, keepdim=True)
            assert bool(((found - exact).abs() <= half + most / 128).all()), name
        else:  # no worse than by scales that clip nothing
            groups = exact.unflatten(1, (-1, 32 if exact.shape[1] % 64 else 64))
            whole = groups.abs().amax(-1, keepdim=True) / 7.5
            plainly = (groups / whole).round().clamp(-8, 7) * whole
            error, worst = ((x - exact).square().sum() for x in (found, plainly.view_as(exact)))
            assert error < 1.05 * worst, name
    assert shift_of_logits(demo_checkpoint, folder) < (0.5 if scheme == "w4a16" else 0.15)


def shift_of_logits(plain: Path, folder: Path) -> float:
    """The standard deviation of the change, as a share of that of the logits."""
    before, after = (logits_of(load(each, device="cpu"), IDS) for each in (plain, folder))
    return float((after - before).float().std() / before.float().std())


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that do not map the file, which is written again."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def first_of(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def test_what_stands_beside_the_weights(demo_checkpoint: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "plain", tmp_path / "int8"
    shutil.copytree(demo_checkpoint, source)
    write_json(source / "quality.json", {"verdict": "of the plain weights"})
    succeeded("quantize", source, "--scheme", "int8", "-o", folder, "--shard-size=200KB")
    shards = [path.name for path in folder.glob("*.safetensors")]
    assert len(shards) > 2 and f"model-00001-of-{len(shards):05d}.safetensors" in shards
    check_files(folder)
    names = {path.name for path in folder.iterdir()} - set(shards)
    assert names == {p.name for p in demo_checkpoint.iterdir() if p.suffix != ".safetensors"}
    card = (folder / "README.md").read_text()
    assert "no plan makes them again" in card and "of its parameters and quantised\n" in card
    assert read_config(folder)["quantization_config"]["format"] == "int-quantized"
    load(folder, device="cpu")
    words = ("the weights of", "were quantised", "name the plain checkpoint", "--plain")
    assert_refused(grasp_deploy("verify", folder), *words)
    assert_refused(grasp_deploy("verify", demo_checkpoint, "--plain", folder), "leave --plain out")
    proven = grasp_deploy("verify", folder, "--plain", demo_checkpoint)
    assert proven.code == 0 and "quantised again, bit for bit" in " ".join(proven.stdout.split())
    links = [check.name for check in verify(folder, plain=demo_checkpoint)]
    assert links[:2] == ["files", "shapes"] and links[-2:] == ["files, quantised", "quantised"]
    renew_card(folder, intact_plan(folder), record(), lasting_files(folder))
    assert "were quantised afterwards (`int8`)" in (folder / "README.md").read_text()
    assert all(check.ok for check in verify(folder, plain=demo_checkpoint))
    held = {path: copied(load_file(path)) for path in folder.glob("*.safetensors")}
    path, name = next((p, n) for p in held for n in held[p] if held[p][n].dtype == torch.int8)
    held[path][name][0, 0] ^= 1
    for change in (
        lambda: edit_json(folder / "config.json", rope_theta=7.0),
        lambda: edit_json(folder / "generation_config.json", eos_token_id=7),
        lambda: (folder / "generation_config.json").unlink(),
        lambda: save_file(held[path], path, {"format": "pt"}),
    ):
        saved = {file: file.read_bytes() for file in folder.iterdir()}
        change()
        state_anew(folder)
        *_, last = verify(folder, plain=demo_checkpoint)
        assert not last.ok and "is not what quantising" in last.detail
        for file, data in saved.items():
            file.write_bytes(data)
    manifest, stated = source / "manifest.json", manifest_of(source)
    (tmp_path / "secret").touch()
    write_json(manifest, {"sha256": {**stated, "../secret": sha256(tmp_path / "secret")}})
    outside = ("quantize", source, "--scheme", "fp8", "-o", tmp_path / "other")
    assert_refused(grasp_deploy(*outside), "is not the file that manifest.json states")
    write_json(manifest, {"sha256": stated})
    (source / "tokenizer.json").write_text("{}")
    assert_refused(grasp_deploy(*outside), "tokenizer.json is not the file that manifest.json")
    again = ("quantize", folder, "--scheme", "fp8", "-o", tmp_path / "twice")
    assert_refused(grasp_deploy(*again), "the model is quantised")
    over = ("quantize", source, "--scheme", "fp8", "-o", source, "--overwrite")
    assert_refused(grasp_deploy(*over), "is what is quantised: name another folder")


def test_a_dense_folder_and_columns_that_no_group_divides(tmp_path: Path) -> None:
    model = save_tiny("llama", tmp_path / "dense")
    byte_level_tokenizer().save_pretrained(tmp_path / "dense")
    (tmp_path / "dense/additional_chat_templates").mkdir()
    (tmp_path / "dense/additional_chat_templates/tool_use.jinja").write_text("{{ tools }}")
    assert quantize(tmp_path / "dense", "fp8", tmp_path / "fp8").layers
    folders = tmp_path / "dense", tmp_path / "fp8"
    expected, found = (AutoTokenizer.from_pretrained(each).chat_template for each in folders)
    assert found == expected and set(found) == {"default", "tool_use"}
    quantize(tmp_path / "dense", "fp8", tmp_path / "fp8", overwrite=True)
    assert_refused(grasp_deploy("verify", tmp_path / "fp8"), "holds no pruned checkpoint")
    slice_by_hand(model, random_kept(model.config)).save_pretrained(tmp_path / "odd")
    save_tiny("llama", tmp_path / "narrow", head_dim=12)
    before = tree(tmp_path)
    with pytest.raises(InputError, match=r"and 4-bit weights share scales by 32: compress"):
        quantize(tmp_path / "odd", "w4a16", tmp_path / "out")
    with pytest.raises(InputError, match=r"o_proj.*share scales by 32: take --scheme int8"):
        quantize(tmp_path / "narrow", "w4a16", tmp_path / "out")
    with pytest.raises(InputError, match="exists: name another folder"):
        quantize(tmp_path / "dense", "int8", tmp_path / "fp8")
    assert tree(tmp_path) == before


def test_the_copy_states_the_dtype_of_its_tensors_and_no_code_but_ours(tmp_path: Path) -> None:
    """vLLM computes in the one that is stated. A pruned folder may have lost its plan."""
    save_tiny("llama", tmp_path / "dense", dtype=torch.bfloat16)
    edit_json(tmp_path / "dense/config.json", dtype="float16", torch_dtype="float16")
    edit_json(tmp_path / "dense/config.json", auto_map={"AutoConfig": "org/code--file.Class"})
    quantize(tmp_path / "dense", "int8", tmp_path / "int8")
    config = read_config(tmp_path / "int8")
    assert config["dtype"] == "bfloat16" and not {"torch_dtype", "auto_map"} & config.keys()
    export(random_plan(tmp_path / "dense"), tmp_path / "dense", tmp_path / "cut")
    (tmp_path / "cut/plan.grasp").unlink()
    quantize(tmp_path / "cut", "int8", tmp_path / "copy")
    for code in read_config(tmp_path / "copy")["auto_map"].values():
        assert (tmp_path / "copy" / code.partition(".")[0]).with_suffix(".py").is_file()


def test_groups_lie_whole_on_each_worker_that_the_plan_is_for(tmp_path: Path) -> None:
    base, plain, folder = (tmp_path / name for name in ("base", "plain", "w4a16"))
    save_tiny("llama", base, intermediate_size=384, num_attention_heads=8, num_key_value_heads=4)
    export(random_plan(base, tensor_parallel=2, ffn_multiple=64), base, plain)
    shape = quantize(plain, "w4a16", folder)
    assert shape.group_columns == 32 and tensor_parallel_sizes(shape) == [1, 2]
    assert difference(folder, plain) == ("", 0)


def test_a_plain_model_that_the_group_does_not_divide_is_not_what_was_quantised(
    tmp_path: Path,
) -> None:
    """Nor is a copy that states a group which its own columns lack."""
    wide, narrow, folder = (tmp_path / name for name in ("wide", "narrow", "w4a16"))
    save_tiny("llama", wide, intermediate_size=128)
    save_tiny("llama", narrow, intermediate_size=96)
    assert quantize(wide, "w4a16", folder).group_columns == 64
    assert difference(folder, narrow) == ("config.json", 0)
    edit_json(folder / "config.json", intermediate_size=96)
    assert difference(folder, narrow) == ("config.json", 0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_row_of_tiny_weights_stays_finite_on_a_disk_with_just_enough_room(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("llama", tmp_path / "dense", dtype=torch.float16)
    path = first_of(tmp_path / "dense")
    stored, name = copied(load_file(path)), "model.layers.0.mlp.up_proj.weight"
    stored[name][0] = 0
    stored[name][0, 0] = 6e-8
    save_file(stored, path, {"format": "pt"})
    shape = config_and_shape(tmp_path / "dense")[1]
    needed = four_bit_bytes(shape, 32) if scheme == "w4a16" else eight_bit_bytes(shape)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    quantize(tmp_path / "dense", scheme, tmp_path / "out")
    made = load_file(first_of(tmp_path / "out"))
    assert sum(tensor.nbytes for tensor in made.values()) == needed
    assert decoded(made, name).isfinite().all()


def test_what_comes_from_elsewhere_is_not_proven(demo_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    quantize(demo_checkpoint, "int8", folder)
    (folder / "special_tokens_map.json").write_text("{}")
    state_anew(folder)
    *_, last = verify(folder, plain=demo_checkpoint)
    assert last.outcome == "wrong" and "special_tokens_map.json" in last.detail


@pytest.mark.slow
def test_rounding_that_is_learnt_is_not_proven_and_more_than_a_step_is_wrong(
    demo_checkpoint: Path, demo_text: tuple[Path, Path], tmp_path: Path
) -> None:
    pytest.importorskip("auto_round")
    folder, text = tmp_path / "learnt", ("--calibration", demo_text[0])
    learning = ("--scheme", "w4a16", *text, "--calibration-sequences", "4", "-o", folder, "--json")
    assert "output" in document("quantize", demo_checkpoint, *learning)
    taught = f"(`w4a16, its rounding learnt on 4 sequences of {demo_text[0].name} by AutoRound`)"
    assert taught in (folder / "README.md").read_text()
    plainly = ("quantize", demo_checkpoint, "--scheme", "w4a16", "-o", tmp_path / "nearest")
    assert "with --calibration TEXT four bits lose less" in grasp_deploy(*plainly).stdout
    path, stored = first_of(folder), copied(load_file(first_of(folder)))
    nearest, plain = (load_file(first_of(f)) for f in (tmp_path / "nearest", demo_checkpoint))
    matrices = [name for name in plain if name.endswith("_proj.weight")]
    assert all(not torch.equal(stored[f"{n}_packed"], nearest[f"{n}_packed"]) for n in matrices)
    assert shift_of_logits(demo_checkpoint, folder) < 0.5
    *_, last = verify(folder, plain=demo_checkpoint)
    assert last.outcome == "not proven" and f"{len(matrices)} matrices" in last.detail
    packed, scale = (f"{matrices[0]}_{part}" for part in ("packed", "scale"))
    for name, change in (
        (packed, lambda t: t ^ 5),
        (scale, lambda t: 20 * t),
        (scale, lambda t: t / 9),
    ):  # of steps
        changed = copied(stored)
        changed[name][0, 0] = change(changed[name][0, 0])
        save_file(changed, path, {"format": "pt"})
        state_anew(folder)
        *_, last = verify(folder, plain=demo_checkpoint)
        assert last.outcome == "wrong" and f"{packed} is not what quantising" in last.detail


def test_text_for_a_rounding_that_cannot_be_learnt(
    demo_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("once upon a time there was a small model, " * 400)
    given = ("quantize", demo_checkpoint, "-o", tmp_path / "out", "--calibration", text)
    monkeypatch.setitem(sys.modules, "auto_round", None)
    before = tree(tmp_path)
    one = ("--scheme", "w4a16", "--calibration-sequences", "1")
    assert_refused(grasp_deploy(*given, *one), "pip install 'grasp-deploy[quantize]'")
    assert_refused(grasp_deploy(*given, "--scheme", "fp8"), "--calibration has no effect on")
    assert_refused(grasp_deploy(*given[:-2], *one), "no effect without --calibration")
    present = SimpleNamespace(AutoRound=None, SignRoundConfig=None)
    monkeypatch.setitem(sys.modules, "auto_round", present)
    few = tmp_path / "few"
    save_tiny("llama", few, vocab_size=80)
    beyond = ("quantize", few, "-o", tmp_path / "out", "--calibration", text, *one)
    before = tree(tmp_path)
    assert_refused(grasp_deploy(*beyond), "vocabulary has only 80")
    own = (*given, *one, "--calibration", "self")
    assert_refused(grasp_deploy(*own), "cannot let the model write text: leave self out")
    assert tree(tmp_path) == before
