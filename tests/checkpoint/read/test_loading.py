"""A tokenizer gives the same tokens in every call, whatever it was trained with."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models

from grasp_deploy.checkpoint.read.loading import load_tokenizer
from tests.tiny import save_tiny


def test_dropout_is_for_training(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    vocabulary = {"a": 0, "aa": 1, "aaaa": 2}
    merges = [("a", "a"), ("aa", "aa")]
    Tokenizer(models.BPE(vocabulary, merges, dropout=0.5)).save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["dropout"] == 0.5
    assert load_tokenizer(tmp_path)("a" * 400)["input_ids"] == [2] * 100
