"""The clinic's classic mistakes, as kernels, are caught in every shape in which they err; no right one is accused."""

from functools import cache

import pytest
import torch

from kvlayout.bench import check_reader, check_writer
from kvlayout.bench.observation import reader_rows
from kvlayout.bench.shapes import VARY, Shapes
from kvlayout.clinic.classics import CLASSICS
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


TAIL = dict(spec=INDEXER, vary=("block_size", "page_size_padded", "far_uint32", "far_blocks"), backend=TailBackend)
SETTINGS = {
    "all": dict(spec=SPEC, vary=VARY, backend=None),
    "fixed blocks": dict(spec=SPEC, vary=[name for name in VARY if name != "block_size"], backend=None),
    "tail": TAIL,
    "beside": TAIL | dict(backend=None),
}
# {the clinic's name: (what it is tried with, the mistake, the right formula, what all wrong cases have in common)}
BUGS = {
    "flat-slot": ("all", seeded.flat_slot, seeded.right, None),
    "nhd-as-hnd": ("all", seeded.heads_outside_states, seeded.right, None),
    "hnd-as-nhd": ("all", seeded.states_outside_heads, seeded.right, None),
    "block-size-axis": ("all", seeded.block_size_of_heads, seeded.right, None),
    "manager-id-kernel-stride": ("fixed blocks", seeded.manager_blocks, seeded.right, "kernel blocks"),
    "kernel-id-manager-stride": ("fixed blocks", seeded.manager_stride, seeded.right, "kernel blocks"),
    "block-stride-length": ("all", seeded.page_of_block_stride, seeded.right, None),
    "int32-bytes": ("all", seeded.int32_bytes, seeded.right, "offsets past 2^31"),
    "int32-elements": ("all", seeded.int32_product, seeded.right, "offsets past 2^31"),
    "kv-split-in-block": ("all", seeded.value_plane, seeded.right, None),
    "kv-split-planes": ("all", seeded.layer_planes, seeded.right, None),
    "scales-beside": ("tail", seeded.scales_beside, seeded.scales_at_tail, None),
    "scales-at-tail": ("beside", seeded.scales_at_tail, seeded.scales_beside, None),
}


def test_every_classic_of_the_clinic_has_a_kernel():
    assert set(BUGS) == set(CLASSICS)


@pytest.fixture(autouse=True)
def one_thread():
    # On a busy machine torch's threads wait for each other at each small copy.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def all_cases(setting, far):
    """The cases of a run, and those of ``far``: layouts whose offsets pass 2^31, by how many bits."""
    spec, vary, backend = SETTINGS[setting].values()
    asked = None if backend is None else as_backend(backend)
    shapes = Shapes(spec, list(asked and asked.supported_kv_cache_layouts() or KVCacheLayout), asked, vary, SEED)
    return [*map(shapes.case, range(CASES)),
            *(shapes.far_case(index, layout, dict(far)[layout.name])
              for index, layout in enumerate(shapes.layouts, start=CASES) if layout.name in dict(far))]


def check(check_kernel, kernel, setting):
    arguments = dict(SETTINGS[setting])
    return check_kernel(kernel, arguments.pop("spec"), cases=CASES, seed=SEED, **arguments)


def far_bits(report):
    """(layout, bits that its far offsets passed) of a report, as a machine's free memory allows."""
    short = {bits: next((one for one in report.not_checked if one.startswith(f"offsets past 2^{bits} in ")
                         and "must be free" in one), "") for bits in (31, 32)}
    most = 31 if any("Triton's interpreter" in one for one in report.not_checked) else 32
    return tuple((name, 31 if name in short[32] else most) for name in report.by_layout if name not in short[31])


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("kind", ["writer", "reader"])
def test_a_kernel_with_the_mistake(name, kind):
    setting, mistake, truth, common = BUGS[name]
    report = check(check_writer, seeded.writer(mistake), setting) if kind == "writer" else \
        check(check_reader, seeded.reader(mistake, stays=True), setting)
    wrong = dict.fromkeys(report.by_layout, 0)
    cases = all_cases(setting, far_bits(report))
    for case in cases:
        slots = case.requests.slots if kind == "writer" else reader_rows(case).slot
        wrong[case.layout.name] += seeded.is_wrong(mistake, case, slots[slots >= 0], truth)
    assert report.cases == CASES and report.far_cases == len(cases) - CASES
    assert {layout: failed for layout, (failed, _) in report.by_layout.items()} == wrong
    assert common is None or not report.failed and not report.far_cases or common in report.always


@pytest.mark.parametrize(("setting", "formula"), [
    ("all", seeded.right), ("tail", seeded.scales_at_tail), ("beside", seeded.scales_beside)])
def test_right_kernels_are_not_accused(setting, formula):
    assert check(check_writer, seeded.writer(formula), setting).ok
    assert check(check_reader, seeded.reader(formula), setting).ok
