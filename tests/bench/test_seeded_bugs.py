"""The classic mistakes are caught in every shape in which they err, and right kernels are accused in none."""

from functools import cache

import pytest
import torch

from kvlayout.bench import check_reader, check_writer
from kvlayout.bench.observation import reader_rows
from kvlayout.bench.shapes import VARY, Shapes
from kvlayout.facts.backends import as_backend
from kvlayout.interior import Field, Interior
from kvlayout.layout import KVCacheLayout
from kvlayout.spec import FullAttentionSpec, MLAAttentionSpec
from tests import seeded_kernels as seeded

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=32, dtype="bfloat16")
INDEXER = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype="uint8")
CASES, SEED = 500, 7


class TailBackend:
    """The sparse indexer's page: all values, then all scales."""

    @classmethod
    def supported_kv_cache_layouts(cls):
        return "LBNHC", "LBHNC", "BLNHC"

    @classmethod
    def interior(cls, spec):
        return Interior((Field("K", 0, 128, state_stride=128),
                         Field("K scale", spec.num_states * 128, 1, 32, state_stride=4)), "page")


TAIL = dict(spec=INDEXER, vary=("block_size", "page_size_padded", "far_blocks"), backend=TailBackend)
SETTINGS = {
    "all": dict(spec=SPEC, vary=VARY, backend=None),
    "fixed blocks": dict(spec=SPEC, vary=[name for name in VARY if name != "block_size"], backend=None),
    "tail": TAIL,
    "beside": TAIL | dict(backend=None),
}
# (what it is tried with, the mistake, the right formula, what all wrong cases have in common)
BUGS = {
    "flat slot x row": ("all", seeded.flat_slot, seeded.right, None),
    "NHD read as HND": ("all", seeded.heads_outside_states, seeded.right, None),
    "block size from the wrong axis": ("all", seeded.block_size_of_heads, seeded.right, None),
    "kernel stride for manager blocks": ("fixed blocks", seeded.manager_blocks, seeded.right, "kernel blocks"),
    "block stride for page length": ("all", seeded.page_of_block_stride, seeded.right, None),
    "int32 product": ("all", seeded.int32_product, seeded.right, "offsets past 2^31"),
    "K and V as planes": ("all", seeded.value_plane, seeded.right, None),
    "scales beside, not at the tail": ("tail", seeded.scales_beside, seeded.scales_at_tail, None),
    "scales at the tail, not beside": ("beside", seeded.scales_at_tail, seeded.scales_beside, None),
}


@pytest.fixture(autouse=True)
def one_thread():
    # On a busy machine torch's threads wait for each other at each small copy.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def all_cases(setting, number):
    spec, vary, backend = SETTINGS[setting].values()
    asked = None if backend is None else as_backend(backend)
    shapes = Shapes(spec, list(asked and asked.supported_kv_cache_layouts() or KVCacheLayout), asked, vary, SEED)
    return [*map(shapes.case, range(number)),
            *(shapes.far_case(index, layout) for index, layout in enumerate(shapes.layouts, start=number))]


def check(check_kernel, kernel, setting, number):
    arguments = dict(SETTINGS[setting])
    return check_kernel(kernel, arguments.pop("spec"), cases=number, seed=SEED, **arguments)


@pytest.mark.parametrize("name", BUGS)
def test_a_writer_with_the_mistake(name):
    setting, mistake, truth, common = BUGS[name]
    report = check(check_writer, seeded.writer(mistake), setting, CASES)
    wrong = dict.fromkeys(report.by_layout, 0)
    for case in all_cases(setting, CASES):
        slots = case.requests.slots
        wrong[case.layout.name] += seeded.is_wrong(mistake, case, slots[slots >= 0], truth)
    assert not report.ok and report.cases == CASES and report.far_cases == len(wrong)
    assert {layout: failed for layout, (failed, _) in report.by_layout.items()} == wrong
    assert common is None or common in report.always


@pytest.mark.parametrize("name", BUGS)
def test_a_reader_with_the_mistake(name):
    setting, mistake, truth, _ = BUGS[name]
    number = 60
    report = check(check_reader, seeded.reader(mistake), setting, number)
    wrong = sum(seeded.is_wrong(mistake, case, reader_rows(case).slot, truth)
                for case in all_cases(setting, number))
    # A wrong reader may also leave the memory behind a request's end; then it raises where its formula isn't wrong.
    assert wrong <= report.failed <= wrong + report.counts.get("raised", 0) and not report.ok


@pytest.mark.parametrize(("setting", "formula"), [
    ("all", seeded.right), ("tail", seeded.scales_at_tail), ("beside", seeded.scales_beside)])
def test_right_kernels_are_not_accused(setting, formula):
    assert check(check_writer, seeded.writer(formula), setting, CASES).ok
    assert check(check_reader, seeded.reader(formula), setting, CASES).ok
