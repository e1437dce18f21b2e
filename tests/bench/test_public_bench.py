"""The public names of the bench: all of DESIGN's, each documented."""

import kvlayout
from kvlayout import bench


def test_the_names():
    assert {"check_writer", "check_reader", "KernelReport"} <= set(bench.__all__)
    assert kvlayout.bench is bench and bench.examples.__doc__
    for name in bench.__all__:
        assert getattr(bench, name).__doc__, name


def test_a_report_has_what_the_design_says():
    fields = set(bench.KernelReport.__dataclass_fields__) | {"ok"}
    assert {"ok", "cases", "first", "map"} <= fields
    assert {"layout", "shape", "coordinate", "expected", "found"} <= set(bench.Fault.__dataclass_fields__)
