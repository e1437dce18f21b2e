"""Groups overlaid on the same bytes: strips of a block, the cost of equal pages, and who meets whom."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.address import AddressMap
from kvlayout.clinic.meeting import colliding_blocks, meets, slots_meet
from kvlayout.clinic.overlay import group_overlay, page_losses
from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.plan import make_plan
from kvlayout.selection import Selection
from kvlayout.spec import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from tests.strategies import maps


def cell_bytes(address_map, layer, block, head=None, state=None) -> set[int]:
    """Every byte of a coordinate, one by one."""
    _, heads, states, content = address_map.shape(layer)
    grid = np.meshgrid(range(heads) if head is None else [head], range(states) if state is None else [state],
                       np.arange(content), indexing="ij")
    return set(address_map.offset(layer, block, *grid).ravel().tolist())


def as_set(runs) -> set[int]:
    return {byte for start, length in zip(*(part.tolist() for part in runs)) for byte in range(start, start + length)}


def group_bytes(address_map, group, block) -> set[int]:
    """Every byte of a group's content in a block of the manager's."""
    found = set()
    for name in address_map.config.kv_cache_groups[group].layer_names:
        ratio = address_map.shape(name)[0] // address_map.config.num_blocks
        for part in range(ratio):
            found |= cell_bytes(address_map, name, block * ratio + part)
    return found


@given(maps(), st.data())
def test_strips_against_every_byte(address_map, data):
    block = data.draw(st.integers(0, address_map.config.num_blocks - 1))
    strips = group_overlay(address_map, block)
    assert [strip.group for strip in strips] == list(range(len(address_map.config.kv_cache_groups)))
    useful = [group_bytes(address_map, strip.group, block) for strip in strips]
    blocks = []
    for index, strip in enumerate(strips):
        others = set().union(*(one for other, one in enumerate(useful) if other != index))
        assert as_set(strip.useful) == useful[index]
        assert as_set(strip.shared) == useful[index] & others
        assert strip.shared_with == tuple(other for other, one in enumerate(useful)
                                          if other != index and one & useful[index])
        assert not as_set(strip.padding) & useful[index]
        assert (strip.useful_bytes, strip.shared_bytes) == (len(useful[index]), len(useful[index] & others))
        assert 0 <= strip.page_padding_bytes <= strip.padding_bytes
        blocks.append(as_set(strip.padding) | as_set(strip.crossing) | useful[index])
        foreign = set().union(*(group_bytes(address_map, other, another) for other in range(len(strips))
                                for another in range(address_map.config.num_blocks) if another != block))
        assert not (as_set(strip.padding) | as_set(strip.page_padding)) & foreign
        assert as_set(strip.crossing) <= foreign
    # Whoever owns it, it is the same block, and it holds what each group may put there.
    assert all(one == blocks[0] for one in blocks)
    assert set().union(*useful) <= blocks[0]
    assert max(blocks[0]) < address_map.size_bytes


@given(maps())
def test_no_byte_is_in_two_blocks_where_pages_are_whole(address_map):
    if len({region.tensor.block_stride for region in address_map.regions}) > 1:
        return  # groups of unequal pages, layer after layer: their blocks do overlap
    seen = set()
    for block in range(address_map.config.num_blocks):
        strip = group_overlay(address_map, block)[0]
        mine = as_set(strip.useful) | as_set(strip.padding)
        if address_map.layout.is_block_outermost:
            assert not mine & seen
        seen |= mine


def trap(layout):
    """vllm#41657: two groups whose pages are both 65,536 bytes, 16 tokens of 8 heads and 32 of 4."""
    specs = [FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16"),
             SlidingWindowSpec(block_size=32, num_kv_heads=4, head_size=128, dtype="bfloat16", sliding_window=64)]
    assert {spec.page_size_bytes for spec in specs} == {65536}
    groups = [KVCacheGroupSpec((f"{name}.0", f"{name}.1"), spec) for name, spec in zip("ab", specs)]
    return AddressMap(get_kv_cache_config_from_groups(groups, 0, KVCacheLayout[layout], num_gpu_blocks_override=8))


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_vllm_41657_equal_slots_are_not_the_cause(layout):
    address_map = trap(layout)
    found = slots_meet(address_map, 32, "a.0", "b.0")
    assert not found.shares
    assert found.blocks == (2,)
    assert "(block 2, row 0)" in found.reason and "(block 1, row 0)" in found.reason
    assert "Equal slots by themselves share nothing" in found.reason
    for block in range(8):
        assert colliding_blocks(address_map, ("a.0", block), "b.0") == (block,), "only equal block ids collide"
        assert meets(address_map, ("a.0", block), ("b.0", block)).num_bytes == 65536
        assert not meets(address_map, ("a.0", block), ("b.1", block)).shares


def test_equal_block_ids_overlay_legally():
    found = meets(trap("BLHNC"), ("a.1", 3), ("b.1", 3))
    assert (found.shares, found.offset) == (True, 3 * 131072 + 65536)
    assert "legal" in found.reason
    apart = meets(trap("BLHNC"), ("a.1", 3), ("b.1", 4))
    assert (apart.shares, apart.num_bytes, apart.offset) == (False, 0, -1)
    assert "equal block id, 3," in apart.reason


def coordinates(data, address_map):
    layer = data.draw(st.sampled_from(address_map.layers))
    blocks, heads, states, _ = address_map.shape(layer)
    return (layer, data.draw(st.integers(0, blocks - 1)), data.draw(st.one_of(st.none(), st.integers(0, heads - 1))),
            data.draw(st.one_of(st.none(), st.integers(0, states - 1))))


@given(maps(), st.data())
def test_meetings_against_every_byte(address_map, data):
    first, second = coordinates(data, address_map), coordinates(data, address_map)
    found = meets(address_map, first, second)
    mine = cell_bytes(address_map, *first)
    shared = mine & cell_bytes(address_map, *second)
    assert (found.shares, found.num_bytes, found.offset) == (bool(shared), len(shared), min(shared, default=-1))
    assert found.blocks == tuple(block for block in range(address_map.shape(second[0])[0])
                                 if mine & cell_bytes(address_map, second[0], block))
    assert found.reason


def test_the_cost_of_a_mamba_page():
    """Qwen3-Next: attention blocks of 544 tokens, so that their page holds a Mamba state of 1,097,728 bytes."""
    plan = make_plan(Selection(model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=4))
    found = page_losses(plan.address_map)
    assert [one.kinds for one in found.groups] == [("MambaSpec",)] * 3 + [("FullAttentionSpec",)]
    assert [(one.content_bytes, one.page_bytes) for one in found.groups[2:]] == [
        (12 * 1097728, 12 * 1114112), (12 * 1114112, 12 * 1114112)]
    assert found.groups[3].block_size == 544
    assert found.groups[0].share == pytest.approx(16384 / 1114112)
    assert found.share == pytest.approx(3 * 16384 / (4 * 1114112))
    strips = group_overlay(plan.address_map, 2)
    assert [strip.padding_bytes for strip in strips] == [12 * 16384] * 3 + [0]
    assert [strip.page_padding_bytes for strip in strips] == [12 * 16384] * 3 + [0]
    assert strips[0].shared_with == (1, 2, 3)
    assert strips[3].shared_bytes == 12 * 1097728


@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC"])
def test_a_group_with_fewer_layers_leaves_room(layout):
    """Gemma 3 27B: groups of 9, 8 and 10 layers, pages of 131,072 bytes."""
    address_map = make_plan(Selection(model="google/gemma-3-27b-it", layout=layout, num_blocks=4)).address_map
    strips = group_overlay(address_map, 3)
    assert [strip.unused_bytes // 131072 for strip in strips] == [1, 1, 1, 1, 2, 2, 0]
    assert strips[4].padding_share == pytest.approx(0.2)
    assert page_losses(address_map).share == 0


def test_large_caches_are_quick():
    plan = make_plan(Selection(model="google/gemma-3-27b-it", num_blocks=100_000))
    start = time.process_time()
    group_overlay(plan.address_map, 99_999)
    page_losses(plan.address_map)
    meets(plan.address_map, (0, 99_999), (50, 5))
    assert time.process_time() - start < 0.3


def test_layers_without_slots():
    address_map = make_plan(Selection(model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=4)).address_map
    mamba = next(name for name in address_map.layers if address_map.shape(name)[2] == 1)
    with pytest.raises(LayoutError, match="no slots"):
        slots_meet(address_map, 0, mamba, mamba)


@pytest.mark.parametrize("call", [
    lambda m: group_overlay(m, 8), lambda m: group_overlay(m, -1), lambda m: group_overlay(m, None),
    lambda m: group_overlay(m, float("nan")), lambda m: group_overlay(m, True), lambda m: group_overlay(None, 0),
    lambda m: page_losses("x"), lambda m: meets(m, ("a.0", 8), ("b.0", 0)), lambda m: meets(m, ("a.0",), ("b.0", 0)),
    lambda m: meets(m, "a.0", ("b.0", 0)), lambda m: meets(m, None, ("b.0", 0)),
    lambda m: meets(m, ("no", 0), ("b.0", 0)),
    lambda m: meets(m, ("a.0", None), ("b.0", 0)), lambda m: meets(m, ("a.0", 0, 8), ("b.0", 0)),
    lambda m: meets(m, ("a.0", 0, 0, 16), ("b.0", 0)), lambda m: meets(m, {"layer": "a.0"}, ("b.0", 0)),
    lambda m: meets(m, {"layer": "a.0", "block": 0, "x": 1}, ("b.0", 0)),
    lambda m: meets(m, ("a.0", 2**80), ("b.0", 0)),
    lambda m: meets(m, (["a.0"], 0), ("b.0", 0)), lambda m: slots_meet(m, -1, "a.0", "b.0"),
    lambda m: slots_meet(m, 128, "a.0", "b.0"), lambda m: slots_meet(m, 1.5, "a.0", "b.0"),
    lambda m: slots_meet(m, 2**70, "a.0", "b.0"), lambda m: colliding_blocks(m, ("a.0", 0), "no"),
    lambda m: colliding_blocks(m, 5, "a.0"), lambda m: slots_meet(7, 1, "a.0", "b.0")])
def test_bad_input(call):
    with pytest.raises(LayoutError):
        call(trap("BLHNC"))


def test_content_of_other_blocks_is_no_padding():
    attention = FullAttentionSpec(block_size=4, num_kv_heads=4, head_size=4, dtype="bfloat16")
    state = MambaSpec(4, ((50,),), ("bfloat16",), page_size_padded=attention.page_size_bytes)
    assert attention.page_size_bytes == 256
    groups = [KVCacheGroupSpec(("a", "b"), attention), KVCacheGroupSpec(("m", "n"), state)]
    address_map = AddressMap(get_kv_cache_config_from_groups(groups, 0, KVCacheLayout.LHBNC,
                                                             num_gpu_blocks_override=5))
    strips = group_overlay(address_map, 4)
    foreign = set().union(*(group_bytes(address_map, group, block) for group in (0, 1) for block in range(4)))
    for strip in strips:
        assert not as_set(strip.padding) & foreign and as_set(strip.crossing) <= foreign
    assert all(len(strip.crossing[0]) for strip in strips[:1])
