"""Names of models side by side."""

import shutil
from pathlib import Path

import pytest

from grasp_deploy.checkpoint.write.quantize import quantize
from grasp_deploy.evaluate.models import bench_models


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (("a/small", "b/large"), ["small", "large"]),
        (("time/keep-0.8", "size/keep-0.8", "c"), ["time/keep-0.8", "size/keep-0.8", "c"]),
        (("a/keep", "a/keep", "b/keep"), ["keep", "keep#2", "keep#3"]),
        (("a/keep", "b/a/keep", "b/keep#2"), ["keep", "keep#3", "keep#2"]),
        (("x.5.json", "a/config.json", "b/a/config.json"), ["x.5", "PLACE/a", "b/a"]),
    ],
)
def test_models_of_one_name_get_that_of_their_folder(
    demo_model: Path, tmp_path: Path, places: tuple[str, ...], names: list[str]
) -> None:
    for place in places:
        path = tmp_path / place
        path = path if path.suffix == ".json" else path / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo_model / "config.json", path)
    models = bench_models([str(tmp_path / place) for place in places], random_weights=True)
    assert [m.name for m in models] == [n.replace("PLACE", tmp_path.name) for n in names]


def test_of_a_quantised_model_another_dtype_widens_the_embeddings_alone(
    demo_model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors comes with vLLM")
    quantize(demo_model, "int8", tmp_path / "int8")
    stored, wide = (
        bench_models([str(tmp_path / "int8")], dtype=dtype)[0].shape
        for dtype in ("auto", "float32")
    )
    assert (stored.dtype, stored.tied_embeddings) == ("bfloat16", True)
    table_bytes = 2 * stored.vocab_size * stored.hidden_size
    assert wide.weight_bytes == stored.weight_bytes + table_bytes
