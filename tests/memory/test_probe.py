"""The proof by memory: right caches pass, and any view that goes astray is caught and named."""

import itertools
import math
import threading
import weakref
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.memory import chunks, probe
from kvlayout.memory.device import devices
from kvlayout.memory.mark import write_and_read_back
from kvlayout.memory.readback import read_as
from kvlayout.readers import WrongReader
from tests.strategies import maps

SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "uint8")


def config(layout="LBNHC", blocks=6, spec=SPEC, groups=1, layers=3):
    made = [kv.KVCacheGroupSpec([f"{g}.{i}" for i in range(layers)], spec) for g in range(groups)]
    return kv.get_kv_cache_config_from_groups(made, 0, layout, num_gpu_blocks_override=blocks)


def allocate(address_map: kv.AddressMap) -> kv.KVCache:
    try:
        return kv.allocate_kv_cache(
            address_map.config, "cpu", address_map.layout, address_map.kernel_block_sizes,
            interiors={name: address_map.region(name).interior for name in address_map.layers})
    except kv.LayoutError as error:
        # Strides that a wider dtype can't view; vLLM refuses these too (golden views).
        assume("multiple of" not in error.rule and "scatters" not in error.rule)
        raise


def owned(address_map: kv.AddressMap) -> int:
    return sum(math.prod(region.geometry.shape) for region in address_map.regions)


@settings(max_examples=60)
@given(maps(), st.sampled_from([64, 200, 1 << 20]), st.sampled_from([1, 3, 1000]), st.sampled_from([1, 2, 1000]))
def test_every_right_cache_passes_whatever_the_chunk(address_map, chunk, at_once, room):
    with pytest.MonkeyPatch.context() as patch, allocate(address_map) as cache:
        patch.setattr(chunks, "_BYTES", {"cpu": (chunk, at_once * chunk)})
        patch.setattr(chunks, "_ROOM_BYTES", room * chunk)
        patch.setattr(probe, "_SCAN_BYTES", 3 * chunk)
        report = kv.verify(cache)
        assert report.ok, report.summary
        assert report.bytes_checked == owned(address_map) and report.mismatches == () and report.map is None


@settings(max_examples=70)
@given(maps(), st.data())
def test_any_stride_or_start_that_is_wrong_is_caught(address_map, data):
    with allocate(address_map) as cache:
        name = data.draw(st.sampled_from(address_map.layers))
        view = cache.views[name]
        assume(view.numel())
        strides, start = list(view.stride()), view.storage_offset()
        axis = data.draw(st.sampled_from(["start", *[i for i in range(4) if view.shape[i] > 1]]))
        by = data.draw(st.integers(-8, 8).filter(bool))
        if axis == "start":
            start += by
        else:
            strides[axis] += by
        last = start + sum((n - 1) * s for n, s in zip(view.shape, strides))
        assume(min(start, *strides) >= 0 and (last + 1) * view.element_size() <= cache.nbytes)
        cache.views[name] = view.as_strided(view.shape, strides, start)
        try:
            report = kv.verify(cache)
        except kv.LayoutError as error:  # elements that share one place can't be written at all
            assert error.argument == "cache.views" and error.value == name
            assert int(torch.count_nonzero(cache.buffer)) == 0
            return
        assert not report.ok and report.mismatched_bytes > 0 and report.mismatches
        for one in report.mismatches:
            assert one.expected != one.found
            if one.layer is not None:
                assert address_map.offset(one.layer, one.block, one.head, one.state, one.byte) == one.offset
            else:
                assert all(owner.group != one.group for owner in address_map.owners(one.offset))
        assert report.map.wrong_bytes.sum() <= report.mismatched_bytes == report.decoded_bytes
        assert int(torch.count_nonzero(cache.buffer)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", kv.KVCacheLayout.__members__)
def test_every_layout_and_dtype(layout, dtype):
    spec = kv.FullAttentionSpec(block_size=16, num_kv_heads=3, head_size=20, dtype=dtype)
    with kv.allocate_kv_cache(config(layout, spec=spec, groups=2), "cpu") as cache:
        report = kv.verify(cache)
        assert report.ok and report.bytes_checked == 2 * cache.nbytes and "1 GiB/s" not in report.device


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()])
def test_stopped_midway_it_leaves_zeros_and_says_what_is_not_proven(error):
    calls = []

    def progress(done, total):
        calls.append((done, total))
        if done > total // 2:
            raise error

    with kv.allocate_kv_cache(config(blocks=200), "cpu") as cache:
        with pytest.raises(type(error)) as caught:
            kv.verify(cache, progress=progress)
        assert int(torch.count_nonzero(cache.buffer)) == 0
        if isinstance(error, KeyboardInterrupt):
            assert "nothing is proven" in str(caught.value)
        calls.clear()
        error = None
        assert kv.verify(cache, progress=lambda done, total: calls.append((done, total))).ok
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        assert calls[-1][0] == calls[-1][1] == 2 * cache.nbytes


def test_what_an_earlier_proof_left_does_not_pass_for_this_ones():
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        assert kv.verify(cache).ok
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunks.Chunks, "write", lambda self, count: None)
            assert not kv.verify(cache).ok


def test_the_bar_counts_every_byte(capsys):
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        kv.verify(cache, progress=True)
    assert "100%" in capsys.readouterr().err


def test_what_has_no_bytes_is_refused():
    meta = kv.allocate_kv_cache(config(), "meta")
    freed = kv.allocate_kv_cache(config(), "cpu")
    freed.free()
    for cache, why in ((meta, "has no bytes"), (freed, "was freed"), (None, "must be a KVCache")):
        with pytest.raises(kv.LayoutError, match=why):
            kv.verify(cache)


ODD_VIEWS = {
    "nothing": lambda view: None,
    "an array": lambda view: np.zeros(tuple(view.shape)),
    "meta": lambda view: torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device="meta"),
    "sparse": lambda view: view.to_sparse(),
    "flat": lambda view: view.reshape(-1),
    "one number": lambda view: torch.tensor(1),
    "fewer blocks": lambda view: view[:0],
    "fewer heads": lambda view: view[:, :1],
    "expanded": lambda view: view[:1].expand(view.shape),
    "negated": torch._neg_view,
    "conjugated": lambda view: view.view(torch.complex64).conj(),
}


@pytest.mark.parametrize("kind", ODD_VIEWS)
def test_what_is_no_view_of_the_cache_is_refused_by_name(kind):
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        cache.views["0.1"] = ODD_VIEWS[kind](cache.views["0.1"])
        with pytest.raises(kv.LayoutError, match="cache.views='0.1'") as caught:
            kv.verify(cache)
        assert caught.value.cure
        assert int(torch.count_nonzero(cache.buffer)) == 0


def test_a_view_whose_storage_was_given_back_is_refused():
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        gone = cache.views["0.1"].clone()
        gone.untyped_storage().resize_(0)
        cache.views["0.1"] = gone
        with pytest.raises(kv.LayoutError, match="beyond its storage"):
            kv.verify(cache)


def test_right_views_pass_in_any_guise():
    """The same bytes in another element type, as a parameter, asking for gradients, made in inference mode."""
    with torch.inference_mode():
        made = kv.allocate_kv_cache(config(), "cpu")
    with made as cache:
        assert kv.verify(cache).ok
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        views = dict(cache.views)
        cache.views.update({"0.0": views["0.0"].view(torch.int8), "0.1": torch.nn.Parameter(views["0.1"]),
                            "0.2": views["0.2"].view(torch.complex64)})
        assert kv.verify(cache).ok


@pytest.mark.parametrize("progress", ["yes", 1, 0, [], object()])
def test_progress_is_checked_before_anything_is_written(progress):
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        cache.buffer.fill_(7)
        with pytest.raises(kv.LayoutError, match="progress"):
            kv.verify(cache, progress=progress)
        assert (cache.buffer == 7).all()


def test_a_cache_that_is_freed_meanwhile_is_no_proof_and_stays_free():
    cache = kv.allocate_kv_cache(config(blocks=200), "cpu")
    held = weakref.ref(cache.buffer)
    with pytest.raises(kv.LayoutError, match="freed while it was being proven"):
        kv.verify(cache, progress=lambda done, total: cache.free())
    assert cache.buffer is None and cache.views == {} and held() is None


def test_nobody_else_writes_into_a_cache_that_is_being_proven():
    refused = []

    def progress(done, total):
        for call in (lambda: kv.verify(cache), lambda: write_and_read_back(cache, "0.1", 3),
                     lambda: read_as(cache, WrongReader(cache.address_map, cache.address_map), "0.1", 3)):
            with pytest.raises(kv.LayoutError, match="is being proven or written to") as caught:
                call()
            refused.append(caught.value)

    with pytest.MonkeyPatch.context() as patch, kv.allocate_kv_cache(config(), "cpu") as cache:
        patch.setattr(probe, "_WAIT_SECONDS", 0)
        assert kv.verify(cache, progress=progress).ok
        assert refused and write_and_read_back(cache, "0.1", 3)


def peak_of(call) -> int:
    """The most bytes of resident memory during ``call`` above those before it, sampled a thousand times a second."""
    process, done, most = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def watch():
        while not done.wait(0.001):
            most[0] = max(most[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return most[0] - before


def test_a_wholly_wrong_cache_takes_no_gigabytes_to_decode():
    with kv.allocate_kv_cache(config(blocks=2800, layers=3), "cpu") as cache:
        assert cache.nbytes > probe._SCAN_BYTES
        cache.buffer.fill_(1)
        for name, view in cache.views.items():
            cache.views[name] = view.flip(0)  # a copy elsewhere: nothing arrives
        reports = []
        assert peak_of(lambda: reports.append(kv.verify(cache))) < 300 << 20
        assert reports[0].decoded_bytes == reports[0].mismatched_bytes > 0.98 * cache.nbytes


@pytest.mark.parametrize("layout", kv.KVCacheLayout.__members__)
@pytest.mark.parametrize("content", [1, 3, 7])
def test_states_of_a_few_bytes(layout, content):
    """The narrowest words: two layers that change places are told apart even where each is a handful of bytes."""
    for blocks, heads in itertools.product((1, 2, 5), (1, 3)):
        spec = kv.FullAttentionSpec(block_size=4, num_kv_heads=heads, head_size=content, dtype="int8",
                                    state_content_bytes=content, num_head_slots=heads)
        with kv.allocate_kv_cache(config(layout, blocks, spec, layers=2), "cpu") as cache:
            report = kv.verify(cache)
            assert report.ok and report.passes == 4, report.summary
            cache.views["0.0"], cache.views["0.1"] = cache.views["0.1"], cache.views["0.0"]
            assert not kv.verify(cache).ok


@pytest.mark.parametrize("offset", [0, 1, 8, 4096])
def test_tensors_of_one_group_that_overlap_are_never_right(offset):
    one = config(spec=replace(SPEC, dtype="int8"), layers=2)
    (tensor,) = one.kv_cache_tensors
    apart = (replace(tensor, layers=("0.0",)), replace(tensor, layers=("0.1",), offset=offset))
    with kv.allocate_kv_cache(replace(one, kv_cache_tensors=apart), "cpu") as cache:
        assert not kv.verify(cache).ok


def test_scattered_elements_are_refused_where_words_are_narrower():
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        view, other = cache.views["0.1"], cache.views["0.0"].view(torch.int8)
        # One byte off, so that words are single bytes, and elements of two bytes that don't lie side by side.
        cache.views["0.0"] = other.as_strided(other.shape, other.stride(), 1)
        cache.views["0.1"] = view.as_strided(view.shape, (*view.stride()[:3], 2), view.storage_offset())
        with pytest.raises(kv.LayoutError, match=r"cache.views='0.1': scatters a state"):
            kv.verify(cache)
        assert int(torch.count_nonzero(cache.buffer)) == 0


def test_many_tensors_share_their_tiles():
    one = config(blocks=300, layers=100)
    (tensor,) = one.kv_cache_tensors
    apart = [replace(tensor, layers=(name,), offset=tensor.offset + i * tensor.layer_stride)
             for i, name in enumerate(tensor.layers)]
    with kv.allocate_kv_cache(replace(one, kv_cache_tensors=apart), "cpu") as cache:
        cache.buffer.fill_(1)
        assert peak_of(lambda: kv.verify(cache)) < 100 << 20


def test_pages_larger_than_a_chunk_are_proven_in_parts():
    spec = kv.MambaSpec(16, [(1, 5_000_001)], ["int8"])
    with kv.allocate_kv_cache(config(spec=spec, blocks=3, layers=2), "cpu") as cache:
        report = kv.verify(cache)
        assert report.ok and report.bytes_checked == cache.nbytes == 30_000_006 and report.passes == 4
        view = cache.views["0.1"]
        cache.views["0.1"] = view.as_strided(view.shape, (view.stride(0) - 1, *view.stride()[1:]))
        report = kv.verify(cache)
        # Which of two blocks keeps the byte that both write depends on who comes last.
        assert not report.ok and report.mismatches[0].layer == "0.1" and report.mismatches[0].block in (0, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", kv.KVCacheLayout.__members__)
def test_on_a_gpu(layout):
    device = next(name for name in devices() if name.startswith("cuda"))
    with kv.allocate_kv_cache(config(layout, blocks=500, groups=2), device) as cache:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        assert kv.verify(cache).ok
        assert torch.cuda.max_memory_allocated() - before < 300 << 20
        cache.views["0.1"] = cache.views["0.0"]
        assert not kv.verify(cache).ok
