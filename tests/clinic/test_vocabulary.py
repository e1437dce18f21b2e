"""The words of other systems for one layout."""

import pytest

from kvlayout.clinic.vocabulary import SOURCES, names, no_word
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout, PhysicalLayout

WORDS = {  # vLLM's: NHD/HND, FlashInfer, LMCache, pieces of one block in NIXL's descriptors
    "LBNHC": ("NHD", "NHD", "NL_X_NB_BS_NH_CS", "one descriptor for each block and layer"),
    "LBHNC": ("HND", "HND", "NL_X_NB_NH_BS_CS", "one descriptor for each block and layer"),
    "LHBNC": (None, None, None, "one descriptor for each block and layer and head"),
    "BLNHC": (None, "NHD", "NB_NL_BS_NH_CS", "one descriptor for each block"),
    "BLHNC": (None, "HND", "NB_NL_NH_BS_CS", "one descriptor for each block"),
    "BHLNC": (None, "HND", None, "one descriptor for each block"),
}


@pytest.mark.parametrize("layout", KVCacheLayout, ids=lambda layout: layout.name)
def test_words_of_the_six(layout):
    found = names(layout)
    assert found["vLLM"] == layout.name
    assert tuple(found[v] for v in ("NHD/HND", "FlashInfer", "LMCache", "NIXL")) == WORDS[layout.name]
    assert found.keys() == SOURCES.keys()
    assert no_word(layout) == [vocabulary for vocabulary, word in found.items() if word is None]


def test_strides_in_words():
    assert names("NHD")["strides"] == ("the next byte, then the next head, then the next token, then the next block, "
                                       "then the next layer (nearest first)")


def test_a_prototype_has_strides_and_descriptors_only():
    found = names(PhysicalLayout("HBLNC"))
    assert {vocabulary for vocabulary, word in found.items() if word} == {"NIXL", "strides"}
    assert found["NIXL"] == "one descriptor for each block and head"


@pytest.mark.parametrize("wrong", [None, "", "nhd", 5, ["LBNHC"], float("nan"), True, "L" * 1_000_000])
def test_what_is_no_layout(wrong):
    with pytest.raises(LayoutError, match="layout"):
        names(wrong)
