"""Runs of a part of the cache, and the regions that a connector registers."""

import time
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.clinic.relayout import relaid
from kvlayout.clinic.transfers import (
    MemoryRegion,
    Transfer,
    registered_regions,
    shard_slots,
    transfer,
    transfer_by_layout,
    transfer_selections,
)
from kvlayout.errors import LayoutError
from kvlayout.plan import make_plan
from kvlayout.selection import Selection
from kvlayout.strided import StridedSet
from tests.strategies import maps

SIX = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


@cache
def qwen(layout="LBNHC", **more):
    return make_plan(Selection(model="Qwen/Qwen3-0.6B", backend="FLASH_ATTN", layout=layout, num_blocks=64, **more))


# 28 layers, 8 KV heads, block 16, head 128, bf16, 64 blocks: {bytes of a run: runs}, in the order of SIX.
EXPECTED = {
    "one block": ({65536: 28}, {65536: 28}, {8192: 224}, {1835008: 1}, {1835008: 1}, {1835008: 1}),
    "one layer": ({4194304: 1}, {4194304: 1}, {4194304: 1}, {65536: 64}, {65536: 64}, {8192: 512}),
    "one head shard": ({32768: 28}, {2048: 448}, {8192: 112}, {32768: 28}, {2048: 448}, {917504: 1}),
    "one request": ({196608: 28}, {196608: 28}, {24576: 224}, {5505024: 1}, {5505024: 1}, {5505024: 1}),
}


@pytest.mark.parametrize("what", EXPECTED)
@pytest.mark.parametrize("layout", SIX)
def test_the_standard_four(layout, what):
    found = transfer_selections(qwen(layout).address_map, block=5, layer=3, request=[4, 5, 6])
    assert found[what].run_bytes == EXPECTED[what][SIX.index(layout)]


def test_numbers_of_a_transfer():
    found = Transfer({512: 3, 4096: 1})
    assert (found.num_runs, found.total_bytes, found.smallest, found.largest) == (4, 5632, 512, 4096)
    assert found.share_below(512) == 0
    assert found.share_below(4096) == 0.75
    assert found.byte_share_below(4096) == 1536 / 5632
    empty = Transfer()
    assert (empty.num_runs, empty.smallest, empty.largest) == (0, 0, 0)
    assert empty.share_below(9) == empty.byte_share_below(9) == 0


def test_all_six_layouts_of_one_plan():
    found = transfer_by_layout(qwen(), blocks=5, heads=2)
    assert {name: one.run_bytes for name, one in found.items()} == {
        "LBHNC": {8192: 28}, "LBNHC": {512: 448}, "LHBNC": {8192: 28},
        "BLHNC": {8192: 28}, "BLNHC": {512: 448}, "BHLNC": {229376: 1}}


def test_a_layout_that_can_not_be_says_why():
    plan = make_plan(Selection(model="deepseek-ai/DeepSeek-V3.2-Exp", num_blocks=4))
    found = transfer_by_layout(plan, blocks=[1])
    assert isinstance(found[plan.layout.name], Transfer)
    refused = {name for name, one in found.items() if isinstance(one, str)}
    assert refused == {"LHBNC", "BHLNC"}
    assert all(found[name] for name in refused)


@given(maps(), st.data())
def test_runs_hold_the_selected_bytes(address_map, data):
    layer = data.draw(st.sampled_from(address_map.layers))
    blocks, heads, states, content = address_map.shape(layer)
    chosen = data.draw(st.lists(st.integers(0, blocks - 1), min_size=1, max_size=4))
    head = data.draw(st.integers(0, heads - 1))
    found = transfer(address_map, blocks=chosen, layers=layer, heads=head)
    index = np.meshgrid(np.unique(chosen), [head], np.arange(states), np.arange(content), indexing="ij")
    offsets = np.unique(address_map.offset(layer, *index))
    gaps = np.flatnonzero(np.diff(offsets) > 1)
    lengths = np.diff(np.concatenate([[0], gaps + 1, [len(offsets)]]))
    values, counts = np.unique(lengths, return_counts=True)
    assert found.run_bytes == dict(zip(values.tolist(), counts.tolist()))


@given(maps(), st.data())
def test_a_whole_layer_from_its_strides_is_all_of_its_blocks(address_map, data):
    layer = data.draw(st.sampled_from(address_map.layers))
    assert transfer(address_map, blocks=None, layers=layer) == \
        transfer(address_map, blocks=range(address_map.shape(layer)[0]), layers=layer)


@given(maps(), st.data())
def test_a_stretch_of_blocks_is_all_of_its_blocks(address_map, data):
    fewest = min(address_map.shape(name)[0] for name in address_map.layers)
    first = data.draw(st.integers(0, fewest - 1))
    blocks = list(range(first, data.draw(st.integers(first, fewest - 1)) + 1))
    layers = data.draw(st.none() | st.lists(st.sampled_from(address_map.layers), min_size=1))
    _, lengths = address_map.run_arrays(layers, blocks)
    assert list(transfer(address_map, blocks=blocks[::-1], layers=layers).run_bytes) == sorted(set(lengths.tolist()))
    assert transfer(address_map, blocks=blocks, layers=layers).num_runs == len(lengths)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=4))
def test_runs_that_are_said_to_be_apart_are(axes):
    found = StridedSet(0, *zip(*axes))
    if found.runs_are_apart:
        offsets = np.unique(sum(np.ix_(*(np.arange(n) * stride for n, stride in axes))))
        lengths = np.diff(np.flatnonzero(np.concatenate([[True], np.diff(offsets) > 1, [True]])))
        assert lengths.tolist() == [found.run_length] * found.num_runs


def test_runs_that_touch_across_two_axes_are_not_apart():
    """Two heads with a gap between them, and blocks that begin where the last head ends."""
    assert not StridedSet(0, (4, 2, 8), (20, 12, 1)).runs_are_apart
    assert StridedSet(0, (4, 2, 8), (21, 12, 1)).runs_are_apart


def test_a_whole_layer_of_a_huge_pool_is_counted_at_once():
    plan = make_plan(Selection(model="llama-tiny", available_memory=140 << 30))
    start = time.process_time()
    found = transfer_by_layout(plan, blocks=None, layers=1)
    assert time.process_time() - start < 0.5
    blocks, heads, states, content = plan.address_map.shape(1)
    assert blocks > 9_000_000
    assert found["BLNHC"].run_bytes == {heads * states * content: blocks}
    assert found["BHLNC"].run_bytes == {states * content: blocks * heads}


@given(maps())
def test_regions_hold_every_owned_byte(address_map):
    regions = registered_regions(address_map)
    assert {name for one in regions for name in one.layers} == set(address_map.layers)
    for start, length in address_map.runs():
        covered = sum(max(0, min(start + length, one.base + one.length) - max(start, one.base))
                      for one in regions)
        assert covered >= length


def test_regions_of_the_two_kinds():
    apart = registered_regions(qwen("LHBNC").address_map)
    assert len(apart) == 28
    assert apart[3] == MemoryRegion(3 * 4194304, 4194304, ("model.layers.3.self_attn.attn",))
    assert registered_regions(qwen("BLHNC").address_map) == [
        MemoryRegion(0, 117440512, qwen("BLHNC").address_map.layers)]


def test_overlaid_groups_share_their_regions():
    found = registered_regions(make_plan(Selection(model="google/gemma-3-27b-it", num_blocks=4)).address_map)
    assert len(found) == 10
    assert len(found[0].layers) == 7


@pytest.mark.parametrize("slots, rank, size, expected", [
    (8, 1, 4, [2, 3]), (2, 3, 8, [0]), (2, 4, 8, [1]), (1, 5, 8, [0])])
def test_shards(slots, rank, size, expected):
    assert list(shard_slots(slots, rank, size)) == expected


def test_a_request_in_a_large_cache_is_quick():
    plan = make_plan(Selection(model="meta-llama/Llama-3.3-70B-Instruct", backend="FLASH_ATTN", layout="LBNHC",
                               num_blocks=100_000))
    start = time.process_time()
    assert transfer(plan.address_map, blocks=list(range(7, 8007, 2))).num_runs == 80 * 4000
    assert transfer(plan.address_map, blocks=None).num_runs == 1
    assert time.process_time() - start < 2


@given(maps(), st.data())
def test_evenly_spaced_blocks_and_heads_are_counted_as_they_are_listed(address_map, data):
    """The closed form against the listed runs, for any layers of any tensors."""
    layers = data.draw(st.none() | st.lists(st.sampled_from(address_map.layers), min_size=1))
    shapes = [address_map.shape(name) for name in layers or address_map.layers]
    blocks, heads = (data.draw(st.none() | st.builds(lambda first, step, most=most: range(first, most, step),
                                                     st.integers(0, most - 1), st.integers(1, 3)))
                     for most in (data.draw(st.integers(1, min(shape[axis] for shape in shapes))) for axis in (0, 1)))
    found = transfer(address_map, blocks=blocks, layers=layers, heads=heads)
    _, lengths = address_map.run_arrays(layers, blocks, heads)
    assert found.run_bytes == dict(zip(*(part.tolist() for part in np.unique(lengths, return_counts=True))))
    if blocks is not None:
        assert transfer(address_map, blocks=list(blocks)[::-1], layers=layers, heads=heads) == found


@pytest.mark.parametrize("layout", SIX)
def test_one_head_of_all_blocks_and_layers_of_a_large_pool_is_counted_at_once(layout):
    plan = make_plan(Selection(model="meta-llama/Llama-3.3-70B-Instruct", backend="FLASH_ATTN", layout=layout,
                               num_blocks=100_000))
    start = time.process_time()
    found = transfer(plan.address_map, blocks=None, heads=0)
    few = make_plan(Selection(model="meta-llama/Llama-3.3-70B-Instruct", backend="FLASH_ATTN", layout=layout,
                              num_blocks=3))
    listed = transfer(few.address_map, blocks=None, heads=0)
    assert found.total_bytes * 3 == listed.total_bytes * 100_000
    assert time.process_time() - start < 0.5


def test_more_runs_than_can_be_listed_are_refused():
    uneven = [0, 1, *range(3, 100_000)]
    plan = make_plan(Selection(model="meta-llama/Llama-3.3-70B-Instruct", backend="FLASH_ATTN", layout="LBNHC",
                               num_blocks=100_000))
    start = time.process_time()
    with pytest.raises(LayoutError, match="more runs than can be listed"):
        transfer(plan.address_map, blocks=uneven, heads=0)
    with pytest.raises(LayoutError, match="more runs than can be listed"):
        plan.address_map.run_arrays(head=0)
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3.2-Exp",
                                   "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def test_the_four_of_any_pool_take_no_longer(model):
    start = time.process_time()
    found = transfer_selections(make_plan(Selection(model=model, num_blocks=2**24)).address_map, tp_size=1)
    few = transfer_selections(make_plan(Selection(model=model, num_blocks=2)).address_map, tp_size=1)
    assert found["one request"].total_bytes == (2**24 - 1) * few["one request"].total_bytes
    assert time.process_time() - start < 2


@pytest.mark.parametrize("blocks", [range(65), range(64, 65), range(-1, 3), range(10**30), range(3, -2, -1)])
def test_a_range_that_leaves_the_pool_is_refused_unlisted(blocks):
    with pytest.raises(LayoutError, match="blocks="):
        transfer(qwen().address_map, blocks=blocks)


def test_the_shard_of_heads_whose_k_and_v_have_slots_of_their_own():
    """FlashInfer's NVFP4: slots 0 to 7 are K of the heads, 8 to 15 V."""
    plan = make_plan(Selection(model="Qwen/Qwen3-0.6B", backend="FLASHINFER", kv_cache_dtype="nvfp4", num_blocks=100))
    assert plan.address_map.shape(0) == (100, 16, 16, 72)
    for rank in (0, 1):
        wanted = [*range(4 * rank, 4 * rank + 4), *range(8 + 4 * rank, 12 + 4 * rank)]
        found = transfer_selections(plan.address_map, block=5, tp_rank=rank)["one head shard"]
        assert found == transfer(plan.address_map, blocks=5, heads=wanted)
        assert found.total_bytes == 28 * 8 * 16 * 72


def test_a_slot_that_holds_all_heads_has_no_shard():
    """ROCM_ATTN: slot 0 is K of all heads, slot 1 V."""
    plan = make_plan(Selection(model="Qwen/Qwen3-0.6B", backend="ROCM_ATTN", num_blocks=4))
    with pytest.raises(LayoutError, match="2 head slots that aren't its 8 heads"):
        transfer_selections(plan.address_map)
    assert transfer_selections(plan.address_map, tp_size=1)["one head shard"].total_bytes == 28 * 2 * 16 * 2048


@pytest.mark.parametrize("wrong", [
    dict(blocks=64), dict(blocks=-1), dict(blocks=[0.5]), dict(blocks=float("nan")), dict(blocks=[True]),
    dict(blocks=2**70), dict(blocks="5"), dict(blocks=[[1], [2]]), dict(blocks=[[1], [2, 3]]),
    dict(blocks=0, heads=8),
    dict(blocks=0, heads={}), dict(blocks=0, layers="x" * 1_000_000), dict(blocks=0, layers=28),
    dict(blocks=0, layers=3.5), dict(blocks=0, layers=[None]), dict(blocks=0, layers=[[0]]),
    dict(blocks=0, layers=True),
    dict(blocks=0, layers=b"abc"), dict(blocks=0, layers=np.array(0.5)), dict(blocks=0, layers=10**30)])
def test_bad_input_is_one_clear_error(wrong):
    with pytest.raises(LayoutError):
        transfer(qwen().address_map, **wrong)
    with pytest.raises(LayoutError):
        transfer_by_layout(qwen(), **wrong)


@pytest.mark.parametrize("wrong", [
    dict(block=64), dict(block=None), dict(layer="no"), dict(layer=1.5), dict(tp_size=0), dict(tp_size=3),
    dict(tp_rank=2), dict(tp_rank=True), dict(request=[64]), dict(request=-5), dict(request=[None])])
def test_bad_selections(wrong):
    with pytest.raises(LayoutError):
        transfer_selections(qwen().address_map, **wrong)


def test_deep_nesting_is_one_clear_error():
    deep = []
    for _ in range(5000):
        deep = [deep]
    for wrong in (dict(blocks=deep), dict(blocks=0, heads=deep), dict(blocks=0, layers=deep)):
        with pytest.raises(LayoutError, match="deeply nested list"):
            transfer(qwen().address_map, **wrong)


def test_bad_subjects_and_thresholds():
    for call in (lambda: transfer(None, blocks=0), lambda: transfer_by_layout("x", blocks=0),
                 lambda: registered_regions(7), lambda: transfer_selections([]), lambda: relaid(None, "LBHNC"),
                 lambda: relaid(qwen().address_map, "xyz"), lambda: Transfer().share_below(float("nan")),
                 lambda: Transfer().share_below(-1), lambda: Transfer().byte_share_below("1")):
        with pytest.raises(LayoutError):
            call()
