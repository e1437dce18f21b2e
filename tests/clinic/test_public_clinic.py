"""The clinic's public names: all there, also where their modules were imported before."""

from importlib import import_module

import pytest

import kvlayout

TABLES = ("CLASSICS", "NAMES")


@pytest.mark.parametrize("name", [name for name in kvlayout.clinic.__all__ if name not in TABLES])
def test_every_name_is_callable(name):
    value = getattr(kvlayout.clinic, name)
    import_module(value.__module__)
    assert callable(getattr(kvlayout.clinic, name)) and name in dir(kvlayout.clinic)
    assert value.__module__.startswith("kvlayout.clinic.")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_entries(name):
    assert dict(getattr(kvlayout.clinic, name)) and name in dir(kvlayout.clinic)
