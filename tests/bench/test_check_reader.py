"""A reader is told where each element that it returned came from, and a broken one why it can't be compared."""

import numpy as np
import pytest
import torch

from kvlayout import FullAttentionSpec, LayoutError, MLAAttentionSpec, PhysicalLayout
from kvlayout.bench import VARY, check_reader
from kvlayout.bench.examples.paged_decode import gather
from kvlayout.bench.fault import READ_FAULTS
from kvlayout.bench.kernel_map import CHANGED, MISSING, RIGHT, STRAY, UNTOUCHED
from kvlayout.bench.observation import NOWHERE
from tests.far_cases import is_far, others

SPEC = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16")
NEAR = VARY[:-1]


def check(reader, spec=SPEC, *, cases=60, vary=NEAR, **rest):
    report = check_reader(reader, spec, cases=cases, vary=vary, **rest)
    assert set(report.counts) <= set(READ_FAULTS)
    return report


def test_a_right_reader():
    report = check(gather, cases=120, vary=VARY)
    assert report.ok and others(report) == [] and ("offsets past 2^31" in report.by_feature or not is_far(report, 6))
    assert {"head_size_v ≠ head_size", "kernel blocks", "page padding"} <= set(report.by_feature)


def test_a_reader_that_isnt_told_the_head_size():
    def halves(kv_cache, block_table, seq_lens):
        return gather(kv_cache, block_table, seq_lens, kv_cache.shape[3] // 2)

    report = check(halves)
    assert report.ok and "head_size_v ≠ head_size" not in report.by_feature
    assert any("the reader takes no head_size" in one for one in report.not_checked)

    uneven = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=24, head_size_v=8, dtype="bfloat16")
    assert check(lambda *given: gather(*given, 24), uneven).ok

    latent = MLAAttentionSpec(block_size=4, num_kv_heads=1, head_size=72, dtype="bfloat16")
    report = check(lambda cache, *given: gather(cache, *given, cache.shape[3]), latent)
    assert report.ok and not any("head_size" in one for one in report.not_checked)


def test_prototypes():
    layouts = [PhysicalLayout("HBLNC"), PhysicalLayout("NCLBH")]
    assert check(gather, layouts=layouts, vary=["dtype", "num_kv_heads"]).ok


@pytest.mark.parametrize("index, name", list(enumerate(["block_table", "seq_lens"])), ids=str)
def test_what_is_handed_over_must_stay_as_it_is(index, name):
    def spoils(kv_cache, block_table, seq_lens, head_size):
        found = gather(kv_cache, block_table, seq_lens, head_size)
        (block_table, seq_lens)[index].zero_()
        return found

    report = check(spoils)
    assert set(report.counts) == {"input-changed"} and report.failed > 50
    assert report.first.message.startswith(f"{name} was changed")


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
def test_garbage_is_a_finding_in_far_cases_too(dtype):
    noise = np.random.default_rng(0)

    def garbage(kv_cache, block_table, seq_lens, head_size):
        found = gather(kv_cache, block_table, seq_lens, head_size)
        return tuple(torch.from_numpy(noise.integers(0, 256, (*one.shape[:-1], one.shape[-1] * one.element_size()),
                                                     dtype=np.uint8)).view(one.dtype) for one in found)

    spec = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype=dtype)
    report = check(garbage, spec, cases=6, vary=["far_blocks"])
    assert report.failed == report.cases + report.far_cases and "unknown-value" in report.counts


def test_read_elsewhere():
    def next_head(kv_cache, block_table, seq_lens, head_size):
        return gather(kv_cache.roll(1, dims=1), block_table, seq_lens, head_size)

    report = check(next_head, cases=1, vary=[], layouts="LBHNC")
    first, places = report.first, report.places
    assert first.kind == "read-elsewhere" and set(first.coordinate) == {
        "request", "position", "slot", "block", "state", "head", "side", "element"}
    assert first.found - first.expected == 4 * 16 * 2  # head 1 lies behind the 4 states of head 0
    assert f"it was read from byte {first.found:,}, layer." in first.message and ", head 1, " in first.message
    assert set(np.unique(places.found - places.expected)) == {-128, 128}
    assert places.request is not None and set(np.unique(report.map.cells)) == {UNTOUCHED, MISSING}
    assert "another place was read for it" in str(report)


def test_a_table_that_is_ignored():
    def in_a_row(kv_cache, block_table, seq_lens, head_size):
        return gather(kv_cache, torch.arange(block_table.numel()).view(block_table.shape) % len(kv_cache), seq_lens,
                      head_size)

    report = check(in_a_row)
    assert set(report.counts) == {"read-elsewhere"} and report.failed > 50
    assert {RIGHT, STRAY} & set(np.unique(report.map.cells))


def test_values_that_the_cache_doesnt_hold():
    def zeros(kv_cache, block_table, seq_lens, head_size):
        return tuple(torch.zeros_like(one) for one in gather(kv_cache, block_table, seq_lens, head_size))

    report = check(zeros, cases=6)
    assert report.counts == {"unknown-value": 6} and (report.places.found == NOWHERE).all()
    assert "the value that was returned is none of the cache's" in report.first.message


def test_behind_a_requests_end_anything_goes():
    def cleared(kv_cache, block_table, seq_lens, head_size):
        parts = gather(kv_cache, block_table, seq_lens, head_size)
        behind = torch.arange(parts[0].shape[1]) >= seq_lens[:, None]
        return tuple(part.masked_fill(behind[:, :, None, None], 0) for part in parts)

    assert check(cleared).ok


def test_a_reader_that_writes():
    def clears(kv_cache, block_table, seq_lens, head_size):
        found = gather(kv_cache, block_table, seq_lens, head_size)
        kv_cache[0, 0, 0, 0] = 0
        return found

    report = check(clears)
    assert set(report.counts) == {"cache-changed"} and report.failed == 60
    assert "block 0, head 0, state 0, K element 0, was written over; nobody asked for that." in report.first.message
    assert set(np.unique(report.map.cells)) == {UNTOUCHED, RIGHT, CHANGED}
    assert "# written over, by a reader" in str(report) and "#" in str(report.map).splitlines()[1]


@pytest.mark.parametrize(("returned", "message"), [
    (lambda key, value: None, "returned NoneType, not the two tensors"),
    (lambda key, value: key, "returned Tensor, not the two tensors"),
    (lambda key, value: (key, 3), "returned tuple, not the two tensors"),
    (lambda key, value: (key, value[:, :-1]), "returned a value of shape"),
    (lambda key, value: (key.transpose(1, 2), value), "returned a key of shape"),
    (lambda key, value: (key.float(), value), "returned a key in torch.float32 on cpu; the cache is torch.bfloat16"),
    (lambda key, value: (key, value.to("meta")), "on meta"),
])
def test_what_cant_be_compared(returned, message):
    report = check(lambda *given: returned(*gather(*given)), vary=[], cases=6)
    assert report.counts == {"wrong-shape": 6} and message in report.first.message and report.map is None


def test_a_reader_that_raises_is_a_finding():
    def fails(kv_cache, block_table, seq_lens):
        raise RuntimeError("no such kernel")

    report = check(fails, cases=3)
    assert report.counts == {"raised": 3} and "RuntimeError: no such kernel" in str(report.first)


def test_an_object_without_a_signature():
    class Reader:
        __signature__ = "none"

        def __call__(self, kv_cache, block_table, seq_lens):
            return gather(kv_cache, block_table, seq_lens)

    assert check(Reader(), cases=6).ok


def test_bad_arguments():
    for arguments in (dict(reader=3), dict(spec=None), dict(cases=-1), dict(vary="all"), dict(device="meta")):
        given = dict(reader=gather, spec=SPEC) | arguments
        with pytest.raises(LayoutError):
            check_reader(given.pop("reader"), given.pop("spec"), **given)
