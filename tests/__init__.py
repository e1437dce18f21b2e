"""The tests; a package so that they can share helpers (``from tests.golden_records import records``)."""
