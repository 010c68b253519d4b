"""How sources are written: single ones as ever, several with weights, ambiguous ones refused."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_deploy.data.sources import WeightedSource, shares, weighted_sources
from grasp_deploy.errors import InputError

WIKITEXT = "hf:Salesforce/wikitext:wikitext-2-raw-v1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "x,y.txt", "c:2.txt", "p:1,q.txt", "e:1,f:2"):
        Path(name).write_text("text")
    return tmp_path


def message(text: str) -> str:
    with pytest.raises(InputError) as caught:
        weighted_sources(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("wikitext2", "ptb", "c4", "a.txt", "x,y.txt", "c:2.txt", "p:1,q.txt", "e:1,f:2"),
        *("hf:org/name", "hf:org/name:config", "hf:org/name:2", "hf:org/name:en,fr", "missing.txt"),
        *("missing:0.5", "dir/", ".", "", "c4:en"),
    ],
)
def test_a_single_source_is_taken_as_it_is(text: str) -> None:
    assert weighted_sources(text) == [WeightedSource(text, 1.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wikitext2:0.5,c4:0.5", {"wikitext2": 0.5, "c4": 0.5}),
        ("c4:3, a.txt:1e-1", {"c4": 3, "a.txt": 0.1}),
        ("hf:org/name:2,hf:org/other:en:1", {"hf:org/name": 2, "hf:org/other:en": 1}),
        ("hf:org/name:en:1,hf:org/name:fr:1", {"hf:org/name:en": 1, "hf:org/name:fr": 1}),
        ("x,y.txt:1,c:2.txt:2,ptb:3", {"x,y.txt": 1, "c:2.txt": 2, "ptb": 3}),
        ("a.txt:1,missing.txt:1", {"a.txt": 1, "missing.txt": 1}),  # for the reader to refuse
    ],
)
def test_several_sources_have_weights(text: str, expected: dict[str, float]) -> None:
    assert weighted_sources(text) == [WeightedSource(*pair) for pair in expected.items()]


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("wikitext2:0.5,c4", "c4"),
        ("wikitext2,c4:0.5", "wikitext2"),
        ("wikitext2,c4", "wikitext2"),
        ("wikitext2:half,c4:0.5", "wikitext2:half"),
        ("wikitext2:0.5,c4:", "c4:"),
        ("wikitext2:0.5,", ""),
        ("wikitext2:0.5,,c4:0.5", ""),
        ("no,such.txt", "no"),
        ("hf:org/name:1,hf:org/other", "hf:org/other"),
    ],
)
def test_a_source_without_a_weight(text: str, piece: str) -> None:
    assert message(text) == (
        f"there is no file {text!r}, and as a mixture its source {piece!r} has no weight: write "
        "SOURCE:WEIGHT,SOURCE:WEIGHT, each weight a positive number, as in wikitext2:0.5,c4:0.5"
    )


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "1e999", "1e-999"])
def test_a_weight_that_is_no_positive_number(weight: str) -> None:
    text = f"wikitext2:{weight},c4:1"
    assert message(text).startswith(f"the weight of wikitext2 in {text!r} is no positive number: ")


def test_a_weight_of_nothing() -> None:
    assert message(":1,c4:1").startswith("':1' in ':1,c4:1' names no source: write SOURCE:WEIGHT")


@pytest.mark.parametrize("name", ["c4", "a.txt", "x,y.txt"])
def test_one_source_needs_no_weight(name: str) -> None:
    assert message(f"{name}:0.5") == (
        f"'{name}:0.5' is one source with a weight, which only several need: write {name}"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("c4:1,c4:2", "c4"),
        ("a.txt:1,c4:1,./a.txt:1", "./a.txt"),
        ("a.txt:1,link.txt:1", "link.txt"),
        (f"wikitext2:1,{WIKITEXT}:1", WIKITEXT),
        ("no.txt:1,no.txt:1", "no.txt"),
    ],
)
def test_the_same_source_twice(text: str, name: str, folder: Path) -> None:
    (folder / "link.txt").symlink_to("a.txt")
    assert message(text) == f"{name} is named twice: name it once, with the summed weight"


@pytest.mark.parametrize(
    ("text", "name"),
    [("p:1,q.txt:1,c4:1", "p:1,q.txt"), ("c4:1,p:1,q.txt:1", "p:1,q.txt")],
)
def test_two_readings(text: str, name: str) -> None:
    assert f"can be read in two ways, since there is a file {name!r}: rename" in message(text)


def test_names_that_no_file_system_takes() -> None:
    assert weighted_sources("n" * 5000) == [WeightedSource("n" * 5000, 1.0)]
    assert "is named twice" in message("a\0:1,a\0:1")


@pytest.mark.parametrize(
    ("weights", "total", "expected"),
    [
        ([0.5, 0.5], 512, [256, 256]),
        ([1, 1], 5, [3, 2]),  # equal remainders: the first
        ([3, 1], 8, [6, 2]),
        ([0.1, 0.3], 2, [1, 1]),  # equal remainders of decimal numbers
        ([1, 1, 1], 512, [171, 171, 170]),
        ([5, 3, 1], 8, [4, 3, 1]),  # 4.44, 2.67, 0.89
        ([1e6, 1, 1], 5, [3, 1, 1]),  # at least one
        ([7], 4, [4]),
        ([1, 1, 1], 3, [1, 1, 1]),
    ],
)
def test_shares(weights: list[float], total: int, expected: list[int]) -> None:
    assert shares(weights, total) == expected


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6).flatmap(
        lambda weights: st.tuples(st.just(weights), st.integers(len(weights), 600))
    )
)
def test_shares_are_whole_and_near(case: tuple[list[float], int]) -> None:
    weights, total = case
    counts = shares(weights, total)
    assert sum(counts) == total and min(counts) >= 1
    whole = sum(map(Fraction, weights))
    exact = [Fraction(weight) * total / whole for weight in weights]
    if min(exact) >= 1:
        assert all(abs(count - share) < 1 for count, share in zip(counts, exact, strict=True))


def test_fewer_blocks_than_sources() -> None:
    with pytest.raises(InputError, match=r"2 blocks cannot hold one of each of 3 .*--sequences 3"):
        shares([1, 1, 1], 2)
