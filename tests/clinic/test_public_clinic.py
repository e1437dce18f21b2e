"""The clinic's public names: all there, also where their modules were imported before."""

from importlib import import_module
from pathlib import Path

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


def test_no_module_has_a_public_name():
    # The import of such a module would put the module where the name was.
    modules = {path.stem for path in Path(kvlayout.clinic.__file__).parent.glob("*.py")}
    assert modules.isdisjoint(kvlayout.clinic.__all__)
