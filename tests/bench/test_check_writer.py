"""Each kind of fault of a writer is told from the others, with the place, the bytes and the victim."""

import numpy as np
import pytest
import torch

from kvlayout import FullAttentionSpec, KVCacheLayout, LayoutError, MLAAttentionSpec, PhysicalLayout
from kvlayout.bench import VARY
from kvlayout.bench.examples.torch_writer import write
from kvlayout.bench.kernel_map import MISSING, RIGHT, STRAY, UNTOUCHED, WRONG
from tests.far_cases import is_far, others
from tests.writer_checks import SPEC, check


def each_token(key, value, kv_cache, slot_mapping):
    """Yield (token, block, state, its row [heads, C]) of the tokens that are to be written."""
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            yield token, *divmod(slot, kv_cache.shape[2]), torch.cat([key[token], value[token]], dim=1)


def test_a_right_writer():
    report = check(write, cases=120, vary=VARY)
    assert report.ok and (report.cases, report.failed) == (120, 0)
    assert report.first is None and report.map is None and report.places is None and report.counts == {}
    assert set(report.by_layout) == set(KVCacheLayout.__members__) and others(report) == []
    assert sum(cases for _, cases in report.by_layout.values()) == 120 + report.far_cases
    assert set(report.by_feature) | (set() if is_far(report, 6) else {"offsets past 2^31"}) == {
        "bfloat16", "float16", "float32", "uint8", "odd head count", "head_size_v ≠ head_size", "kernel blocks",
        "page padding", "several layers", "mixed pages", "strided key and value", "ignored tokens",
        "offsets past 2^31", "several heads", "padded key and value",
        "over 32 tokens", "another head count", "another head size", "another head size of V",
        "another block size"}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "float64", "uint8"])
def test_other_element_types(dtype):
    spec = FullAttentionSpec(block_size=4, num_kv_heads=3, head_size=8, head_size_v=16, dtype=dtype)

    def bytes_write(key, value, kv_cache, slot_mapping):
        as_bytes = {1: torch.int8, 8: torch.int64}[kv_cache.element_size()]
        write(key.view(as_bytes), value.view(as_bytes), kv_cache.view(as_bytes), slot_mapping)

    assert check(bytes_write, spec, vary=["block_size"], cases=30).ok


def test_latents_have_no_value():
    spec = MLAAttentionSpec(block_size=4, num_kv_heads=1, head_size=72, dtype="bfloat16")
    shapes = []

    def latent(key, value, kv_cache, slot_mapping):
        shapes.append((key.shape[1], value.shape[1:]))
        write(key, value, kv_cache, slot_mapping)

    assert check(latent, spec).ok
    assert set(shapes) == {(1, (1, 0))}


def test_what_the_writer_is_handed():
    seen = []

    def look(key, value, kv_cache, slot_mapping):
        seen.append((key.is_contiguous(), kv_cache.dtype == key.dtype == value.dtype, slot_mapping.dtype,
                     key.stride(2), kv_cache.stride(3), key.shape[1] == kv_cache.shape[1]))
        write(key, value, kv_cache, slot_mapping)

    assert check(look, vary=["num_kv_heads", "dtype"]).ok
    assert {one[0] for one in seen} == {True, False}
    assert {one[1:] for one in seen} == {(True, torch.int64, 1, 1, True)}


def test_nothing_is_written():
    report = check(lambda *_: None, cases=6, vary=[])
    assert report.counts == {"not-written": 6} and report.failed == 6
    first = report.first
    assert (first.kind, first.case, first.layout) == ("not-written", 0, "LBHNC")
    assert first.shape["head_size"] == 8 and first.shape["block_size"] == 4
    assert first.coordinate | dict(slot=0, block=0, state=0) == dict(
        token=first.coordinate["token"], slot=0, block=0, state=0, head=0, side="K", element=0)
    there = f" belongs at byte {first.expected:,}; nothing was written there, nor anywhere else: "
    assert first.found is None and there in first.message
    assert set(np.unique(report.map.cells)) == {UNTOUCHED, MISSING}
    assert "First: not-written, case 0 (LBHNC): token" in str(report) and "○ not written" in str(report)


def test_a_copy_that_was_written_is_suspected():
    def through_reshape(key, value, kv_cache, slot_mapping):
        kept = slot_mapping >= 0
        rows = kv_cache.transpose(1, 2).reshape(-1, kv_cache.shape[1], kv_cache.shape[3])
        rows[slot_mapping[kept]] = torch.cat([key[:len(kept)][kept], value[:len(kept)][kept]], dim=2)

    report = check(through_reshape, cases=12, vary=[])
    assert set(report.counts) == {"not-written"}
    assert "perhaps a copy of the cache was written to (reshape()" in report.first.message

    def only_values(key, value, kv_cache, slot_mapping):
        old = kv_cache[:1, :, 0, :8].expand(key.shape)
        write(old, value, kv_cache, slot_mapping)

    assert all("a copy of the cache" not in one.message for one in check(only_values, cases=12, vary=[]).faults)


def test_written_elsewhere_names_both_places():
    def next_row(key, value, kv_cache, slot_mapping):
        for _, block, state, row in each_token(key, value, kv_cache, slot_mapping):
            kv_cache[block, :, (state + 1) % kv_cache.shape[2]] = row

    report = check(next_row, cases=1, vary=[], layouts="LBHNC")
    first, item = report.first, 2
    state = first.coordinate["state"]
    assert first.kind == "written-elsewhere"
    assert first.found - first.expected == ((state + 1) % 4 - state) * 16 * item
    assert f"block {first.coordinate['block']}, head 0, state {(state + 1) % 4}, K element 0" in first.message
    places = report.places
    row = (places.token == first.coordinate["token"]) & (places.side == 0) & (places.head == 0)
    assert places.expected[row].tolist() == [first.expected + item * i for i in range(8)]
    assert places.found[row].tolist() == [first.found + item * i for i in range(8)]


def test_keys_and_values_exchanged():
    def exchanged(key, value, kv_cache, slot_mapping):
        write(value, key, kv_cache, slot_mapping)

    first = check(exchanged, cases=1, vary=[], layouts="LBHNC").first
    assert first.kind == "written-elsewhere" and first.found - first.expected == 16
    assert "V element 0" in first.message


def test_a_value_that_wasnt_handed_over():
    def doubled(key, value, kv_cache, slot_mapping):
        write(key * 2, value, kv_cache, slot_mapping)

    report = check(doubled, cases=1, vary=[], layouts="LBHNC")
    assert report.first.kind == "wrong-value" and "a value that wasn't handed over" in report.first.message
    assert set(np.unique(report.map.cells[..., 1])) == {UNTOUCHED, RIGHT}
    assert WRONG in report.map.cells[..., 0]


def test_one_token_over_another():
    def last_wins(key, value, kv_cache, slot_mapping):
        *_, (_, block, state, row) = each_token(key, value, kv_cache, slot_mapping)
        for _, one_block, one_state, _ in each_token(key, value, kv_cache, slot_mapping):
            kv_cache[one_block, :, one_state] = row

    report = check(last_wins, vary=[])
    wrong = next(one for one in report.faults if one.kind == "wrong-value")
    assert "; there is now token " in wrong.message


def test_ignored_tokens():
    def minus_one_wraps(key, value, kv_cache, slot_mapping):
        block, state = slot_mapping // kv_cache.shape[2], slot_mapping % kv_cache.shape[2]
        kv_cache[block, :, state] = torch.cat([key, value], dim=2)[:len(slot_mapping)]

    report = check(minus_one_wraps)
    kinds = set(report.counts)
    assert "ignored-token-written" in kinds and "not-written" not in kinds
    assert report.always == ("ignored tokens",)
    one = next(fault for fault in report.faults if fault.kind == "ignored-token-written")
    assert one.coordinate["slot"] < 0 and "block" not in one.coordinate and one.expected is None
    assert "is to be ignored, but was written at byte" in one.message


STRAYS = {
    "stray-other-token": lambda cache: cache[-1, 0, -1, -1:],
    "stray-other-layer": None, "stray-padding": None,
    "stray-outside": lambda cache: cache.as_strided((1,), (1,), 0),
}


@pytest.mark.parametrize("kind", STRAYS)
def test_stray_writes(kind):
    spec = SPEC
    if kind == "stray-padding":
        spec = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16", page_size_padded=320)

    def victim(cache):
        if kind == "stray-other-layer":
            # The element right before block 1 in a block-outermost cache is another layer's, or this one's own.
            return cache.as_strided((1,), (1,), cache.storage_offset() + cache.stride(0) - 1)
        if kind == "stray-padding":
            return cache.as_strided((1,), (1,), cache.storage_offset() + 128)
        return STRAYS[kind](cache)

    def careless(key, value, kv_cache, slot_mapping):
        write(key, value, kv_cache, slot_mapping)
        victim(kv_cache)[:] = 1.0

    layouts = ["BLNHC"] if kind == "stray-other-layer" else ["LBNHC"]
    report = check(careless, spec, vary=[], layouts=layouts, cases=40)
    found = next(one for one in report.faults if one.kind == kind)
    assert kind in report.counts and "was written over with a value that wasn't handed over" in found.message
    assert "not-written" not in report.counts and "written-elsewhere" not in report.counts
    if kind == "stray-outside":
        assert found.found < 0 and "bytes before the allocation" in found.message and found.coordinate == {}
        assert report.map.outside_elements == 1 and "1 elements outside" in str(report.map)
    elif kind == "stray-padding":
        assert found.found % 320 == 256 and "padding behind layer." in found.message
        assert report.map.padding_elements == 1
    else:
        assert found.coordinate["side"] == "V" and STRAY in report.map.cells


def test_a_writer_that_raises_is_a_finding():
    def fails(key, value, kv_cache, slot_mapping):
        if kv_cache.shape[1] % 2:
            raise IndexError("heads must be even")
        write(key, value, kv_cache, slot_mapping)

    report = check(fails)
    assert set(report.counts) == {"raised"} and 0 < report.failed < 60
    message = report.first.message
    assert message.startswith("IndexError: heads must be even (test_check_writer.py, line ") and report.map is None
    assert "odd head count" in report.by_feature
    failed, cases = report.by_feature["odd head count"]
    assert failed == cases


def test_a_product_of_32_bits():
    def wraps(key, value, kv_cache, slot_mapping):
        memory = kv_cache.as_strided((kv_cache.untyped_storage().nbytes() // 2,), (1,), 0)
        for _, block, state, row in each_token(key, value, kv_cache, slot_mapping):
            for head in range(kv_cache.shape[1]):
                at = np.array([block], np.int32) * np.int32(kv_cache.stride(0)) + np.int32(
                    head * kv_cache.stride(1) + state * kv_cache.stride(2))
                start = kv_cache.storage_offset() + int(at[0])
                memory[start:start + row.shape[1]] = row[head]

    with np.errstate(over="ignore"):
        report = check(wraps, vary=["far_blocks"], cases=6, layouts=["BLNHC", "LBNHC"])
    if not is_far(report, 2):
        pytest.skip("too little memory is free here for offsets past 2^31")
    assert (report.failed, report.far_cases) == (2, 2) and "offsets past 2^31" in report.always
    assert report.first.found - report.first.expected == -2 * 2**32
    assert "exactly 4,294,967,296 elements off: a product wrapped at 32 bits" in report.first.message
    assert report.map.outside_elements and len(report.map.blocks) <= 6


def test_prototypes_and_what_views_cant_express():
    layouts = [PhysicalLayout("HBLNC"), PhysicalLayout("NLBHC"), PhysicalLayout("CLBHN"), "LBNHC"]
    report = check(write, layouts=layouts, cases=80)
    assert report.ok and report.by_layout["CLBHN"] == (0, 20)  # as single bytes
    report = check(write, layouts=layouts, vary=["num_kv_heads"], cases=40)
    assert report.ok and "CLBHN" not in report.by_layout
    assert [one for one in report.not_checked if one.startswith("CLBHN, which no view of this spec can express")]
    with pytest.raises(LayoutError, match="scatters the bytes of one bfloat16 element"):
        check(write, layouts=[PhysicalLayout("CLBHN")], vary=[])


def test_the_same_seed_draws_the_same_shapes():
    first, again, other = (check(lambda *_: None, cases=30, seed=seed) for seed in (3, 3, 4))
    assert str(first.first) == str(again.first) and first.by_feature == again.by_feature
    assert first.by_feature != other.by_feature
