"""The default texts of a card, and which texts a checkpoint was calibrated or healed on."""

import pytest

from grasp_deploy.checkpoint.plan import sources_of
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.texts import heldout_corpora


def test_the_default_is_what_was_not_calibrated_on() -> None:
    for seen in ("wikitext2", "hf:Salesforce/wikitext:wikitext-2-raw-v1"):
        assert [corpus.what for corpus in heldout_corpora([], [seen])] == ["c4"]
    assert len(heldout_corpora([], ["mine.txt"])) == 2
    with pytest.raises(InputError, match="or healed on wikitext2 and c4: name other text"):
        heldout_corpora([], ["c4", "wikitext2"])


def test_a_column_is_meant_for_the_texts_that_have_some() -> None:
    found = heldout_corpora(["mine.txt", "wikitext2", "chats.jsonl", "hf:some/name"], (), "said")
    assert [corpus.column for corpus in found] == [None, None, "said", "said"]
    assert [corpus.column for corpus in heldout_corpora(["c4"], (), "said")] == ["said"]


def test_what_was_calibrated_or_healed_on() -> None:
    healing = [{"text": {"source": text}, "steps": 3} for text in ("c4", "texts/a.txt", "c4")]
    provenance = {"calibration": {"source": "wikitext2"}, "healing": healing}
    assert sources_of(provenance) == ["wikitext2", "c4", "texts/a.txt"]
    parts = {"source": "c4=1, b.txt=2", "parts": [{"source": "c4"}, {"source": "b.txt"}]}
    assert sources_of({"calibration": parts}) == ["c4", "b.txt"]
