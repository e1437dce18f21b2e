"""The clinic's public names: all there, also where their modules were imported before."""

from importlib import import_module

import pytest

import kvlayout


@pytest.mark.parametrize("name", kvlayout.clinic.__all__)
def test_every_name_is_callable(name):
    value = getattr(kvlayout.clinic, name)
    import_module(value.__module__)
    assert callable(getattr(kvlayout.clinic, name)) and name in dir(kvlayout.clinic)
    assert value.__module__.startswith("kvlayout.clinic.")
