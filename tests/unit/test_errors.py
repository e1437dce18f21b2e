"""Errors pass from one process to another as they are."""

import copy
import pickle

import pytest

from kvlayout.errors import CacheMemoryError, LayoutConflict, LayoutError
from kvlayout.grouping import PageSizeError
from kvlayout.merging import UnmergeableError
from kvlayout.resolve import ResolutionError, resolve


@pytest.mark.parametrize("kind", [LayoutError, LayoutConflict, CacheMemoryError, PageSizeError, UnmergeableError])
@pytest.mark.parametrize("cure", ["", "Give a larger one"])
def test_an_error_survives_pickling(kind, cure):
    error = kind("size", [1, None], "is too small", cure)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind and str(again) == str(error)
        assert (again.argument, again.value, again.rule, again.cure) == ("size", [1, None], "is too small", cure)


def test_a_resolution_error_keeps_its_steps():
    with pytest.raises(ResolutionError) as caught:
        resolve([["LHBNC"]], None, requested="LBNHC")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is ResolutionError and str(again) == str(caught.value)
    assert again.steps == caught.value.steps and again.steps[-1].after == ()
