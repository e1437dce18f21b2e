"""Real memory agrees with the address map, is checked before it is taken, and is given back."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import kvlayout as kv
from kvlayout.memory import cache as cache_module
from kvlayout.memory.cache import allocate_kv_cache, create_kv_cache_views
from kvlayout.memory.device import as_device, devices, memory_info
from kvlayout.memory.snapshot import take_snapshot
from tests.strategies import configs, layouts

SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
GROUP = kv.KVCacheGroupSpec(["a", "b", "c"], SPEC)


def config(layout="LBNHC", blocks=4, groups=(GROUP,)):
    return kv.get_kv_cache_config_from_groups(groups, 0, layout, num_gpu_blocks_override=blocks)


def written_offsets(cache: kv.KVCache, layer: str) -> np.ndarray:
    """The buffer's bytes that change when all of a layer's view is written."""
    cache.buffer.zero_()
    cache.views[layer].view(torch.int8).fill_(1)
    return torch.nonzero(cache.buffer).flatten().numpy()


@settings(max_examples=60)
@given(configs())
def test_a_layers_view_is_exactly_the_bytes_that_the_map_says(config):
    try:
        cache = allocate_kv_cache(config, "cpu")
    except kv.LayoutError as error:
        # Strides that a wider dtype can't view; vLLM refuses these too (golden views).
        assert "multiple of" in error.rule or "scatters" in error.rule
        return
    with cache:
        address_map = cache.address_map
        for layer in address_map.layers:
            covered = [np.arange(start, start + n) for start, n in address_map.runs(layer)]
            assert (written_offsets(cache, layer) == np.concatenate(covered)).all()


@given(layouts)
def test_one_element_lies_at_its_offset(layout):
    with allocate_kv_cache(config(layout), "cpu") as cache:
        for layer, block, head, state, element in [("a", 0, 0, 0, 0), ("b", 3, 1, 7, 100), ("c", 2, 0, 15, 127)]:
            cache.views[layer][block, head, state, element] = 1.5
            start = cache.address_map.offset(layer, block, head, state, 2 * element)
            assert cache.buffer[start:start + 2].view(torch.bfloat16).item() == 1.5
        assert int(torch.count_nonzero(cache.buffer)) == 6


def test_kernel_blocks_are_views_of_the_same_bytes():
    with allocate_kv_cache(config("LBNHC"), "cpu", kernel_block_sizes=[4]) as cache:
        assert cache.views["b"].shape == (16, 2, 4, 128)
        cache.views["b"][9, 1, 3, 0] = 1.0
        start = cache.address_map.offset("b", 9, 1, 3)
        assert torch.nonzero(cache.buffer).flatten().tolist() == [start, start + 1]
        assert start == allocate_kv_cache(config("LBNHC"), "meta").address_map.offset("b", 2, 1, 7)


def test_views_have_the_specs_dtype_and_share_the_buffer():
    groups = [kv.KVCacheGroupSpec(["attn"], SPEC),
              kv.KVCacheGroupSpec(["state"], kv.MambaSpec(16, ((4, 512),), ("float32",), 8192))]
    with allocate_kv_cache(config("LBNHC", groups=groups), "cpu") as cache:
        assert cache.views["attn"].dtype == torch.bfloat16
        assert cache.views["state"].dtype == torch.int8
        assert cache.views["attn"].data_ptr() == cache.views["state"].data_ptr() == cache.buffer.data_ptr()


def test_free_drops_the_memory():
    cache = allocate_kv_cache(config(), "cpu")
    weak = torch.UntypedStorage.data_ptr(cache.buffer.untyped_storage())
    assert weak and cache.nbytes == cache.buffer.numel() == 3 * 4 * 8192
    cache.free()
    cache.free()
    assert cache.buffer is None and cache.views == {} and "freed" in repr(cache)


@pytest.mark.parametrize("kept", ["nothing", "a cycle of the buffer", "a cycle of a view"])
def test_free_looks_for_cycles_only_where_one_holds_the_memory(kept):
    cache = allocate_kv_cache(config(), "cpu")
    held = {"nothing": None, "a cycle of the buffer": cache.buffer, "a cycle of a view": cache.views["b"]}[kept]
    if held is not None:
        held.itself = held
    weak, held, runs = [weakref.ref(cache.buffer), *map(weakref.ref, cache.views.values())], None, []
    gc.collect()
    gc.disable()  # so that only free itself can collect
    gc.callbacks.append(seen := lambda phase, info: runs.append(phase))
    try:
        cache.free()
        assert bool(runs) == (kept != "nothing")
        assert [one() for one in weak] == [None] * 4
    finally:
        gc.callbacks.remove(seen)
        gc.enable()


def live_bytes() -> int:
    gc.collect()
    return sum(t.numel() for t in gc.get_objects() if type(t) is torch.Tensor and t.dtype == torch.int8)


def test_more_than_the_free_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(cache_module, "memory_info", lambda device: (50_000, 100_000))
    before = live_bytes()
    with pytest.raises(kv.CacheMemoryError, match=r"98,304 bytes.*50,000 bytes\) free"):
        allocate_kv_cache(config(), "cpu")
    assert live_bytes() == before


def test_running_out_of_memory_leaves_nothing_behind(monkeypatch):
    def out_of_memory(*args, **options):
        raise torch.OutOfMemoryError("out of memory\nand a long explanation")

    before = live_bytes()
    monkeypatch.setattr(cache_module.KVCache, "__init__", out_of_memory)
    with pytest.raises(kv.CacheMemoryError, match="could not be allocated on cpu .*: out of memory\\."):
        allocate_kv_cache(config(), "cpu")
    assert live_bytes() == before


def test_a_view_that_can_not_be_made_leaves_nothing_behind():
    odd = kv.FullAttentionSpec(block_size=1, num_kv_heads=1, head_size=2, dtype="float32", page_size_padded=17)
    before = live_bytes()
    with pytest.raises(kv.LayoutError, match="multiple of 4 bytes"):
        allocate_kv_cache(config(groups=[kv.KVCacheGroupSpec(["a", "b"], odd)]), "cpu")
    assert live_bytes() == before


def test_a_pool_of_140_gib_can_be_explored_on_meta():
    big = kv.get_kv_cache_config_from_groups([GROUP], 140 << 30, "BLHNC")
    with allocate_kv_cache(big, "meta") as cache:
        assert cache.nbytes > 139 << 30
        view = cache.views["c"]
        assert view.device.type == "meta"
        assert tuple(2 * s for s in view.stride()) == (*cache.address_map.strides("c")[:3], 2)
        assert 2 * view.storage_offset() == cache.address_map.offset("c", 0)


def test_no_block_is_nothing_to_allocate():
    with pytest.raises(kv.CacheMemoryError, match="at least one block"):
        allocate_kv_cache(config(blocks=0), "cpu")


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "cpu:x", None, "mps"])
def test_a_device_that_is_not_here_is_refused(device):
    with pytest.raises(kv.LayoutError) as error:
        as_device(device)
    assert error.value.argument == "device"


def test_devices_and_their_memory():
    assert devices()[-2:] == ["cpu", "meta"]
    free, total = memory_info("cpu")
    assert 0 < free <= total
    assert memory_info("meta") is None


@pytest.mark.parametrize("raw", [torch.zeros(8), torch.zeros((2, 4), dtype=torch.int8),
                                 torch.zeros(16, dtype=torch.int8)[::2]])
def test_views_need_a_flat_int8_buffer(raw):
    with pytest.raises(kv.LayoutError, match="flat, contiguous int8"):
        create_kv_cache_views(raw, SPEC, 4, "LBNHC", kv.build_kv_cache_tensor(SPEC, 4, ["a"]))


@pytest.mark.parametrize(("size", "offset"), [(255, 256), (0, 0), (512, 256)])
def test_an_empty_view_may_start_behind_the_buffer(size, offset):
    # Kernel blocks of one token, but four tokens share a state. Found by fuzzing against vLLM 0.33.0.
    spec = kv.FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=64, dtype="float8_e4m3fn", tokens_per_state=4)
    tensor = kv.KVCacheTensor(size, ["a"], 896, 128, offset)
    (view,) = create_kv_cache_views(torch.zeros(size, dtype=torch.int8), spec, 7, kv.KVCacheLayout.LBHNC, tensor, 1)
    assert view.shape == (28, 1, 0, 128) and view.stride() == (32, 0, 128, 1) and view.storage_offset() == offset


@pytest.mark.gpu
@pytest.mark.parametrize("layout", list(kv.KVCacheLayout))
def test_cuda_memory_agrees_and_is_given_back(layout):
    free = memory_info("cuda:0")[0]
    with allocate_kv_cache(config(layout, blocks=4096), "cuda:0") as cache:
        assert memory_info("cuda:0")[0] <= free - cache.nbytes
        cache.views["b"][4095, 1, 7, 100] = 1.5
        start = cache.address_map.offset("b", 4095, 1, 7, 200)
        assert cache.buffer[start:start + 2].view(torch.bfloat16).item() == 1.5
        assert int(torch.count_nonzero(cache.buffer)) == 2
    assert memory_info("cuda:0")[0] >= free


@pytest.mark.gpu
def test_more_than_the_gpu_has_is_refused():
    free = memory_info("cuda:0")[0]
    with pytest.raises(kv.CacheMemoryError):
        allocate_kv_cache(kv.get_kv_cache_config_from_groups([GROUP], free + (1 << 30), "LBNHC"), "cuda:0")
    assert memory_info("cuda:0")[0] >= free


ODD_RUNS = (3, "ab", ([0],), ([0], [0, 1]), ([0], [-5]), ([0], [2000]), ([0.5], [1]), (["x"], [1]),
            ([2**62], [2**62]))


@pytest.mark.parametrize("arguments", [
    *({"granule_bytes": size} for size in (0, -8, 7, 12, "x", None, True, 2**40, 2**70)),
    *({"runs": runs} for runs in ODD_RUNS), {"progress": 3}, {"most_bytes": -1}], ids=str)
def test_a_snapshot_of_odd_arguments_is_refused_by_name(arguments):
    with pytest.raises(kv.LayoutError, match=next(iter(arguments))):
        take_snapshot(torch.zeros(1000, dtype=torch.int8), **arguments)


@pytest.mark.parametrize("arguments", [{"kernel_block_sizes": 3}, {"interiors": 3}, {"interiors": {"a": 1}},
                                       {"device": 2**70}, {"kv_cache_config": None}], ids=str)
def test_an_allocation_of_odd_arguments_is_refused_by_name(arguments):
    with pytest.raises(kv.LayoutError, match=next(iter(arguments))):
        kv.allocate_kv_cache(**{"kv_cache_config": config(), "device": "cpu", **arguments})


@pytest.mark.parametrize("spoil", [lambda buffer: buffer[:100], lambda buffer: buffer.float(),
                                   lambda buffer: buffer.view(2, -1), lambda buffer: buffer.numpy()])
def test_a_buffer_that_was_changed_is_refused(spoil):
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        cache.buffer = spoil(cache.buffer)
        with pytest.raises(kv.LayoutError, match="cache.buffer"):
            kv.verify(cache)
