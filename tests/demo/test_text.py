"""The text that comes with Python, and its two parts."""

import pytest

from grasp_deploy.demo.text import MINIMUM_CHARACTERS, documents, split


@pytest.fixture(scope="module")
def library() -> list[str]:
    return documents()


def test_there_is_enough_english_text(library: list[str]) -> None:
    assert sum(map(len, library)) > 1_000_000
    assert min(map(len, library)) >= MINIMUM_CHARACTERS
    assert any("Compound statements" in document for document in library)  # a reference topic
    assert any("Rewrap" in document or "Wrap" in document for document in library)  # a docstring


def test_no_heldout_paragraph_was_read_in_training(library: list[str]) -> None:
    train, heldout = split(library)
    known = {part for document in train for part in document.split("\n\n")}
    assert known.isdisjoint(part for document in heldout for part in document.split("\n\n"))


def test_about_one_document_in_twenty_is_held_out(library: list[str]) -> None:
    train, heldout = split(library)
    assert sorted(train + heldout) == sorted(library)
    assert 0.03 < len(heldout) / len(library) < 0.07
    assert sum(map(len, heldout)) > 40_000


def test_editing_the_body_of_a_document_leaves_it_on_its_side(library: list[str]) -> None:
    _, heldout = split(library)
    edited = [document + "\n\nNew in version 3.99: a sentence." for document in heldout]
    assert split(edited) == ([], edited)
