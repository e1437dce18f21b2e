"""What the kernel test is made of: fingerprints, requests, shapes, memory of holes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlayout import FullAttentionSpec, KVCacheLayout, get_backend
from kvlayout.bench import arena as arenas
from kvlayout.bench import check_reader, check_writer
from kvlayout.bench.codes import Codes
from kvlayout.bench.examples.paged_decode import gather
from kvlayout.bench.examples.torch_writer import write
from kvlayout.bench.requests import draw_requests
from kvlayout.bench.shapes import VARY, Shapes
from tests import seeded_kernels as seeded
from tests.far_cases import is_far

SIX = ", ".join(KVCacheLayout.__members__)
SPEC = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16")
DTYPES = {1: ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint8", "int8"),
          2: ("bfloat16", "float16"), 4: ("float32",), 8: ("float64",)}


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # another test may have switched it on


@pytest.mark.parametrize("item", DTYPES)
@given(data=st.data())
def test_codes_are_numbers_that_kernels_keep(item, data):
    count = data.draw(st.integers(1, 3_000_000))
    numbers = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=50)))
    codes = Codes(item, count)
    turns = [codes.patterns(numbers, turn) for turn in range(codes.turns)]
    assert codes.numbers(turns).tolist() == numbers.tolist()
    for name in DTYPES[item]:
        for patterns in turns:
            values = torch.from_numpy(patterns).view(getattr(torch, name))
            there = values.to(torch.float64 if item == 8 else torch.float32)
            assert torch.isfinite(there).all() and (there > 0).all()
            assert torch.equal(there.to(values.dtype).view(torch.uint8), values.view(torch.uint8))


def test_what_is_no_code():
    codes = Codes(2, 100)
    foreign = np.array([0, 1, -1, -32768, 32767, 0x03FF], dtype=np.int16)
    assert (codes.numbers([foreign]) == -1).all()


@given(seed=st.integers(0, 2**32), blocks=st.integers(2, 9), size=st.sampled_from([(1, 1), (4, 4), (16, 4), (6, 2)]))
def test_requests_are_what_a_scheduler_gives(seed, blocks, size):
    block_size, kernel = size
    asked = draw_requests(np.random.default_rng(seed), blocks, block_size, kernel)
    ratio = block_size // kernel
    own = [row[:-(-length // kernel)] for row, length in zip(asked.block_table, asked.seq_lens)]
    used = np.concatenate(own)
    assert len(set(used.tolist())) == len(used) and used.min() >= ratio and used.max() < blocks * ratio
    assert asked.block_table.min() >= 0 and asked.block_table.max() < blocks * ratio
    kept = asked.slots[asked.slots >= 0]
    assert len(kept) and set((kept // kernel).tolist()) <= set(used.tolist()) and len(set(kept.tolist())) == len(kept)
    assert (asked.slots >= -max(2, block_size)).all()


def test_the_given_spec_comes_first_in_each_layout():
    shapes = Shapes(SPEC, list(KVCacheLayout), None, VARY, 0)
    first = [shapes.case(number) for number in range(6)]
    assert [case.layout for case in first] == list(KVCacheLayout) and all(case.spec == SPEC for case in first)
    assert all(case.block_size == 4 for case in first)


def test_a_padded_spec_stays_padded():
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="uint8", page_size_padded=80)
    shapes = Shapes(spec, list(KVCacheLayout), None, ["head_size", "block_size"], 0)
    drawn = [shapes.case(number).spec for number in range(60)]
    assert {one.page_size_bytes - one.unpadded_page_size_bytes for one in drawn} == {16}
    assert len({one.head_size for one in drawn}) > 2


NO_HOLES = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files of holes in memory")


@NO_HOLES
@pytest.mark.parametrize("layout", KVCacheLayout)
def test_far_memory_is_only_reserved(layout, monkeypatch):
    monkeypatch.setattr(arenas, "memory_info", lambda device: (2**40, 2**40))  # none of it is taken
    case = Shapes(SPEC, [layout], None, VARY, 0).far_case(0, layout)
    assert case.address_map.size_bytes >= 2 * 2**31
    start = case.address_map.offset(case.layer, 0) // 2
    last = case.address_map.offset(case.layer, case.address_map.shape(case.layer)[0] - 1, 1, 3, 30) // 2
    with arenas.far_arena(case, torch.device("cpu"), 100) as arena:
        arena.view[-1, 1, 3, -1] = 1.0
        arena.view[0, 0, 0, 0] = -1.0
        assert (arena.nonzero_around() - arena.first).tolist() == [start, last] and last - start > 2**31 - 2**20
        assert os.fstat(arena._holes._file).st_blocks * 512 <= 4 * 4096
        arena.clear()
        assert arena.nonzero_around().tolist() == [] and arena.view[-1, 1, 3, -1] == 0


@NO_HOLES
@pytest.mark.parametrize("distance", [-2**31, -2**18, 2**18, 2**31 - 2**20])
def test_a_pointer_that_leaves_the_cache_is_a_finding(distance):
    def wild(key, value, kv_cache, slot_mapping):
        write(key, value, kv_cache, slot_mapping)
        kv_cache.as_strided((1, 1), (1, 1), kv_cache.storage_offset() + distance)[:] = key[0, 0, 0]

    report = check_writer(wild, SPEC, cases=4, vary=["dtype"])
    assert set(report.counts) == {"stray-outside"} and report.failed == 4
    assert ("before the allocation" if distance < 0 else "past the allocation's end") in report.first.message
    assert "was written over with token 0" in report.first.message


def test_the_dense_arena_of_another_device():
    case = Shapes(SPEC, [KVCacheLayout.LBNHC], None, VARY, 0).case(0)
    room, size = 4096, case.address_map.size_bytes
    memory = torch.zeros(size + 2 * room, dtype=torch.int8)
    arena = arenas.Arena(case, memory, room, (10, 20), Codes(2, 10_000))
    arena._host = None  # as on a GPU: by torch
    places = np.array([0, 15, 2048, 2050])
    arena.write(np.array([5, 6, 7, 8]), 0, places)
    assert arena.nonzero_around().tolist() == [0, 2048, 2050]
    assert arena.codes.numbers([arena.read(places)]).tolist() == [5, 6, 7, 8]
    arena.clear()
    assert arena.nonzero_around().tolist() == [] and arena.size == memory.numel() // 2


def test_a_backends_limits_hold():
    """What FLASHINFER lists: head sizes, element types, kernel blocks, and no other head size for V."""
    spec = FullAttentionSpec(block_size=64, num_kv_heads=2, head_size=64, dtype="bfloat16")
    backend = get_backend("FLASHINFER")
    shapes = Shapes(spec, list(KVCacheLayout), backend, VARY, 0)
    drawn = [shapes.case(number) for number in range(120)]
    assert {one.spec.head_size for one in drawn} == {64, 128, 256}
    assert all(one.spec.head_size_v == one.spec.head_size for one in drawn)
    assert {one.spec.dtype for one in drawn} == {"float16", "bfloat16", "uint8"}
    assert {one.block_size for one in drawn} == {16, 32, 64} and any("kernel blocks" in one.features for one in drawn)


@NO_HOLES
def test_large_memory_has_no_background():
    spec = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16", page_size_padded=1 << 26)
    case = Shapes(spec, [KVCacheLayout.LBNHC], None, [], 0).case(0)
    assert not arenas.has_background(case)
    layouts = ["LBNHC", "BLHNC"]
    assert check_writer(write, spec, cases=4, vary=[], layouts=layouts).ok
    assert check_reader(gather, spec, cases=4, vary=[], layouts=layouts).ok
    assert check_writer(lambda *given: None, spec, cases=4, vary=[], layouts=layouts).counts == {"not-written": 4}


def test_a_machine_that_cant_reserve_memory(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(arenas, "memory_info", lambda device: (2**40, 2**40))
    report = check_writer(write, SPEC, cases=12)
    assert report.ok
    assert report.not_checked[0] == f"offsets past 2^31 in {SIX}: this system has no files of holes in memory."
    assert not any("2^32" in one for one in report.not_checked)
    assert check_reader(gather, SPEC, cases=12, vary=VARY[:-1]).ok


@pytest.mark.parametrize(("free", "bits"), [(2**32, 31), (2**33 + 2**20, 32)])
def test_without_the_memory_it_says_so(monkeypatch, free, bits):
    monkeypatch.setattr(arenas, "memory_info", lambda device: (free, 2**35))
    for check, kernel in ((check_writer, write), (check_reader, gather)):
        report = check(kernel, SPEC, cases=6)
        assert report.ok and report.far_cases == (0 if bits == 31 else 6)
        told, = (one for one in report.not_checked if one.startswith("offsets past"))
        assert told.startswith(f"offsets past 2^{bits} in {SIX}: {2**(bits + 2):,}"[:60]) and told.endswith(
            f" bytes must be free, in case the kernel copies its cache; {free:,} are.")


# {name: (bytes that a unit of the offset has, whether it is signed)}
WRAPS = {"int32 elements": (2, True), "uint32 elements": (2, False), "int32 bytes": (1, True),
         "uint32 bytes": (1, False)}


@NO_HOLES
@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize("kind", ["writer", "reader"])
def test_a_wrap_of_any_unit_and_sign_is_caught_and_explained(name, kind):
    unit, signed = WRAPS[name]

    def wrapped(f, slot, head, element):
        at, half = seeded.right(f, slot, head, element) * 2 // unit, 2**31 if signed else 0
        return ((at + half) % 2**32 - half) * unit // 2

    check, kernel = (check_writer, seeded.writer) if kind == "writer" else (check_reader, seeded.reader)
    layouts = ["LBNHC", "BLHNC", "BHLNC"]
    report = check(kernel(wrapped), SPEC, cases=3, vary=["far_blocks", "far_uint32"], layouts=layouts)
    if not is_far(report, 3, 32):
        pytest.skip("too little memory is free here for offsets past 2^32")
    assert report.failed == report.far_cases == 3
    assert report.first.kind == ("written-elsewhere" if kind == "writer" else "read-elsewhere")
    assert (report.first.expected - report.first.found) % (2**32 * unit) == 0
    assert " off: a product wrapped at 32 bits" in report.first.message


@NO_HOLES
@pytest.mark.parametrize("step", [0, 1, -1])
@pytest.mark.parametrize("kind", ["writer", "reader"])
def test_zeros_near_a_tokens_place_are_seen_in_far_cases_too(kind, step):
    def clear(kv_cache, block):
        if 0 <= block + step < len(kv_cache):
            kv_cache[block + step] = 0

    def clears_and_writes(key, value, kv_cache, slot_mapping):
        for slot in slot_mapping.tolist():
            if slot >= 0 and len(kv_cache) > 100:
                clear(kv_cache, slot // kv_cache.shape[2])
        write(key, value, kv_cache, slot_mapping)

    def reads_and_clears(kv_cache, block_table, seq_lens, head_size):
        found = gather(kv_cache, block_table, seq_lens, head_size)
        if len(kv_cache) > 100:
            clear(kv_cache, int(block_table[0, 0]) - (step == 1))
        return found

    check, kernel = (check_writer, clears_and_writes) if kind == "writer" else (check_reader, reads_and_clears)
    report = check(kernel, SPEC, cases=6, vary=["far_blocks", "far_uint32"])
    assert report.failed == report.far_cases
    assert set(report.counts) <= {"stray-other-token"} if kind == "writer" else {"cache-changed"}


@pytest.mark.parametrize("heads", [8, 128])
def test_large_pages_are_read_in_part(heads):
    spec = FullAttentionSpec(block_size=256, num_kv_heads=heads, head_size=256, dtype="bfloat16")
    shapes = Shapes(spec, list(KVCacheLayout), None, VARY, 0)
    elements = heads * 512
    for case, most in ((shapes.case(0), 2**20), (shapes.far_case(6, KVCacheLayout.LBNHC), 2**18)):
        assert case.requests.seq_lens.min() >= 1 and case.requests.seq_lens.sum() * elements <= most
    assert {1, case.address_map.config.num_blocks - 1} <= set(case.requests.block_table[:, 0].tolist())


def test_the_bench_loads_torch_only_when_it_is_used():
    root = str(Path(__file__).parents[2])
    code = (f"import sys; sys.path.insert(0, {root!r}); import kvlayout.bench; kvlayout.bench.VARY; "
            "assert 'torch' not in sys.modules; kvlayout.bench.check_writer; assert 'torch' in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
