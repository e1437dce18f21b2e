"""Two sides of a transfer, against a copy of every byte between tiny buffers."""

import time
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvlayout import capture
from kvlayout.address import AddressMap
from kvlayout.clinic.byte_map import fingerprint
from kvlayout.clinic.exchanges import Side, exchange, mistaken
from kvlayout.clinic.landed import judge
from kvlayout.clinic.segments import Segments
from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.plan import make_plan
from kvlayout.selection import Selection
from kvlayout.spec import FullAttentionSpec, MLAAttentionSpec
from tests.strategies import layouts, scales_at_tail, transposed_cell

LAYERS = ("l0", "l1", "l2")
NOBODY = -1


@st.composite
def sides(draw, total, content, kinds=(None, "cell", "page"), layers=LAYERS):
    """(a side of any layout, TP size, block size, kernel split and interior; blocks of a request)."""
    tp_size = draw(st.sampled_from([1, 2, 4]))
    assume(max(total, tp_size) % min(total, tp_size) == 0)
    layout, block_size = draw(layouts), draw(st.sampled_from([2, 4, 6]))
    heads = max(1, total // tp_size)
    if total == 1 and draw(st.booleans()):
        spec = MLAAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=content, dtype="int8",
                                state_content_bytes=content)
    else:
        padded = draw(st.sampled_from([None, heads * block_size * content + 3]))
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=heads, head_size=1, dtype="int8",
                                 state_content_bytes=content, page_size_padded=padded)
    names = draw(st.permutations(layers))
    blocks = draw(st.integers(2, 5))
    try:
        config = get_kv_cache_config_from_groups([KVCacheGroupSpec(names, spec)], 0, layout,
                                                 num_gpu_blocks_override=blocks)
    except LayoutError as error:  # a scattered page can't be padded
        assume(False)
        raise error
    kernel = draw(st.sampled_from([None, 2]))
    kind = draw(st.sampled_from(kinds))
    kernel_spec = spec if kernel is None else spec.copy_with_new_block_size(kernel)
    made = {"cell": transposed_cell, "page": scales_at_tail}.get(kind)
    try:
        address_map = AddressMap(config, layout, None if kernel is None else [kernel],
                                 {name: made(kernel_spec) for name in names} if made else None)
    except LayoutError:
        address_map = AddressMap(config, layout)
    return address_map, tp_size


def positions(address_map, blocks):
    """[(block, state)] of each token position of a request."""
    return [(block, state) for block in blocks for state in range(address_map.shape(0)[2])]


def codes(side, blocks) -> np.ndarray:
    """Of each byte of a side's allocation, a number of its coordinate in the request; NOBODY for the rest."""
    found = np.full(side.address_map.size_bytes, NOBODY, dtype=np.int64)
    for layer in side.layers:
        heads = side.heads if len(side.slot_keys(layer)) == len(side.heads) else (0,)
        for slot, head in enumerate(heads):
            head = 0 if side.slot_keys(layer)[slot][0] == "latent" else head
            for position, (block, state) in enumerate(positions(side.address_map, blocks)):
                for byte in range(side.address_map.shape(layer)[3]):
                    at = side.address_map.offset(layer, block, slot, state, byte)
                    found[at] = ((LAYERS.index(layer) * 8 + head) * 64 + position) * 16 + byte
    return found


def copied(segments, sources, size) -> tuple[np.ndarray, np.ndarray]:
    """What the copies leave in an empty target, and how often each byte was written."""
    buffer, times = np.full(size, NOBODY - 1, dtype=np.int64), np.zeros(size, dtype=np.int64)
    for index, start, to, length in zip(segments.source, segments.source_offset, segments.target_offset,
                                        segments.length):
        assert 0 <= start <= start + length <= len(sources[index])
        buffer[to:to + length] = sources[index][start:start + length]
        times[to:to + length] += 1
    return buffer, times


@st.composite
def transfers(draw):
    """(sources, target, blocks of each side) of one model, with ranks and layers left out now and then."""
    total, content = draw(st.sampled_from([1, 2, 4])), draw(st.integers(2, 3))
    kinds = draw(st.sampled_from([(None,), ("cell",), ("page", "page")]))
    pages = kinds[0] == "page"
    ends = [draw(sides(total, content, kinds)) for _ in range(2)]
    if pages or kinds[0] == "cell":  # a fallback to the default interior has other fields
        assume(all(one.region(0).interior.scope == kinds[0] for one, _ in ends))
    (source_map, tp), (target_map, target_tp) = ends
    is_mla = [isinstance(one.region(0).spec, MLAAttentionSpec) for one, _ in ends]
    assume(is_mla[0] == is_mla[1])
    cut = draw(st.integers(0, 3))
    sources = [Side(source_map, rank, tp, total, stage) for rank in range(tp)
               for stage in (LAYERS[:cut], LAYERS[cut:])]
    if draw(st.booleans()):
        sources = draw(st.lists(st.sampled_from(sources), unique=True, min_size=1))
    target = Side(target_map, draw(st.integers(0, target_tp - 1)), target_tp, total,
                  draw(st.lists(st.sampled_from(LAYERS), unique=True, min_size=1)))
    chosen = [draw(st.lists(st.integers(0, one.shape(0)[0] - 1), unique=True, min_size=1, max_size=4))
              for one in (source_map, target_map)]
    return sources, target, *chosen


@given(transfers(), st.sampled_from(["first", "all"]))
def test_every_byte_against_a_real_copy(drawn, replicas):
    sources, target, source_blocks, target_blocks = drawn
    found = exchange(sources, target, source_blocks=source_blocks, target_blocks=target_blocks, replicas=replicas)
    have = [codes(side, source_blocks) for side in sources]
    want = codes(target, target_blocks)
    buffer, times = copied(found.segments, have, target.address_map.size_bytes)
    wanted = want != NOBODY
    assert found.target_bytes == wanted.sum()
    assert found.missing == (wanted & (times == 0)).sum()
    assert found.twice == (wanted & (times > 1)).sum()
    assert found.wrong == found.stray == 0
    assert (times[~wanted] == 0).all()
    assert (buffer[times > 0] == want[times > 0]).all()
    assert found.coverage == pytest.approx((wanted & (times == 1)).sum() / wanted.sum())
    # A byte is missing only where no source has it.
    held = np.unique(np.concatenate(have))
    assert not np.isin(want[wanted & (times == 0)], held).any()
    if found.missing:
        first = found.first_missing
        assert times[target.address_map.offset(first.layer, first.block, first.head, first.state, first.byte)] == 0


@given(transfers())
def test_segments_are_as_long_as_can_be(drawn):
    sources, target, source_blocks, target_blocks = drawn
    found = exchange(sources, target, source_blocks=source_blocks, target_blocks=target_blocks).segments
    follows = ((found.source[1:] == found.source[:-1])
               & (found.source_offset[1:] == found.source_offset[:-1] + found.length[:-1])
               & (found.target_offset[1:] == found.target_offset[:-1] + found.length[:-1]))
    assert not follows.any()


@given(transfers(), layouts, st.sampled_from(["source", "target"]))
def test_a_mistaken_layout_against_a_real_copy(drawn, layout, side):
    sources, target, source_blocks, target_blocks = drawn
    try:
        found = mistaken(sources, target, source_blocks=source_blocks, target_blocks=target_blocks,
                         assumed_layout=layout, side=side)
    except LayoutError as error:  # the other layout can't split or hold these pages
        assume(False)
        raise error
    ends = found.segments.target_offset + found.segments.length
    size = max(target.address_map.size_bytes, int(ends.max(initial=0)))
    buffers = [np.full(max(one.address_map.size_bytes, size), NOBODY) for one in sources]
    for buffer, one in zip(buffers, sources):
        buffer[:one.address_map.size_bytes] = codes(one, source_blocks)
    buffer, times = copied(found.segments, buffers, size)
    want = np.full(size, NOBODY)
    want[:target.address_map.size_bytes] = codes(target, target_blocks)
    wanted = want != NOBODY
    wrong = wanted & (times == 1) & (buffer != want)
    # Written where nobody should have written: right by chance is wrong too, as no source holds that byte.
    assert found.wrong == wrong.sum()
    assert found.missing == (wanted & (times == 0)).sum()
    assert found.stray == (~wanted & (times > 0)).sum()
    assert found.coverage == pytest.approx((wanted & (times == 1) & (buffer == want)).sum() / wanted.sum())
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        assert found.first_wrong.offset == first
        right = found.first_wrong.right
        assert target.address_map.offset(right.layer, right.block, right.head, right.state, right.byte) == first


@cache
def qwen(tp_size, layout, num_blocks=16, **more):
    return make_plan(Selection(model="Qwen/Qwen3-0.6B", backend="FLASH_ATTN", layout=layout, num_blocks=num_blocks,
                               tp_size=tp_size, **more)).address_map


def test_four_ranks_to_one_of_two():
    target = Side(qwen(2, "LBHNC"), 1, 2, 8)
    sources = [Side(qwen(4, "LBHNC", 32), rank, 4, 8) for rank in range(4)]
    assert target.heads == (4, 5, 6, 7)
    found = exchange(sources, target, source_blocks=[3, 9], target_blocks=[1, 7])
    assert found.is_right and found.coverage == 1
    # 28 layers x 2 blocks x ranks 2 and 3: two heads of one block are 16,384 bytes in one run on both sides.
    assert len(found.segments) == 112
    assert set(found.segments.length.tolist()) == {16384}
    assert set(found.segments.source.tolist()) == {2, 3}


def test_copies_of_two_sources_stay_two():
    """Source 1 goes on at the very offset at which source 0 ends, in offsets of its own."""
    layer = ["model.layers.0.self_attn.attn"]
    sources = [Side(qwen(2, "LBHNC"), rank, 2, 8, layer) for rank in (0, 1)]
    found = exchange(sources, Side(qwen(1, "LBHNC"), 0, 1, 8, layer), source_blocks=[[1], [2]], target_blocks=[0])
    assert found.is_right
    assert list(zip(*(a.tolist() for a in vars(found.segments).values()))) == [
        (0, 32768, 0, 32768), (1, 65536, 32768, 32768)]


def test_a_short_copy_inside_a_long_one():
    done = Segments(*(np.array(column) for column in zip((0, 0, 0, 10), (1, 50, 2, 2))))
    found = judge(done, Segments(*(np.array([n]) for n in (0, 0, 0, 10))), np.array([0]), np.array([12]), 11)
    assert (found.right, found.twice, found.missing, found.wrong) == (8, 2, 2, 0)
    assert (found.first_twice, found.first_missing, found.stray) == (2, 10, 0)


def test_a_rank_that_is_left_out():
    sources = [Side(qwen(4, "LBHNC", 32), rank, 4, 8) for rank in (0, 1, 2)]
    found = exchange(sources, Side(qwen(2, "LBHNC"), 1, 2, 8), source_blocks=[3], target_blocks=[1])
    assert (found.coverage, found.missing) == (0.5, 28 * 16384)
    assert (found.first_missing.layer, found.first_missing.block, found.first_missing.head) == (
        "model.layers.0.self_attn.attn", 1, 2)


def test_replicated_heads_of_more_ranks_than_heads():
    side = Side(qwen(16, "LBNHC"), 5, 16, 8)
    assert side.heads == (2,)
    both = [Side(qwen(16, "LBNHC"), rank, 16, 8) for rank in (4, 5)]
    once = exchange(both, side, source_blocks=[1], target_blocks=[2])
    assert once.is_right and set(once.segments.source.tolist()) == {0}
    twice = exchange(both, side, source_blocks=[1], target_blocks=[2], replicas="all")
    assert (twice.coverage, twice.twice) == (0, twice.target_bytes)
    assert twice.first_twice.block == 2


def test_pipeline_stages():
    maps = [qwen(1, "LBNHC", pp_size=2, pp_rank=rank) for rank in (0, 1)]
    sources = [Side(one, 0, 1, 8) for one in maps]
    target = Side(qwen(1, "BLNHC"), 0, 1, 8)
    assert exchange(sources, target, source_blocks=[4], target_blocks=[5]).is_right
    half = exchange(sources[1:], target, source_blocks=[4], target_blocks=[5])
    assert (half.coverage, half.first_missing.layer) == (0.5, "model.layers.0.self_attn.attn")


def test_vllm_42740_one_side_reads_the_other_order():
    """Written LBNHC, taken for LBHNC: same page size, and 2 of a page's 128 cells are right."""
    target = Side(qwen(1, "LBNHC"), 0, 1, 8)
    found = mistaken([Side(qwen(1, "LBNHC"), 0, 1, 8)], target, source_blocks=[1], target_blocks=[1],
                     assumed_layout="LBHNC", side="source")
    assert found.coverage == pytest.approx(2 / 128)
    assert found.wrong_share == pytest.approx(126 / 128)
    first = found.first_wrong
    assert first.offset == 65536 + 512
    assert (first.right.head, first.right.state) == (1, 0)
    assert (first.found.head, first.found.state) == (0, 2)  # byte 8,192 of a page whose tokens take 4,096


def test_a_mistaken_layout_reaches_other_blocks():
    found = mistaken([Side(qwen(1, "LBNHC"), 0, 1, 8)], Side(qwen(1, "LBNHC"), 0, 1, 8), source_blocks=[5],
                     target_blocks=[5], assumed_layout="BLNHC")
    assert found.stray > 0
    assert found.outside == 0
    assert found.first_stray.block != 5
    assert found.wrong + found.missing + found.twice == found.target_bytes * (1 - found.coverage)


def test_a_mistaken_block_count():
    """Layer-outermost formulas need the peer's number of blocks."""
    target = Side(qwen(1, "LBNHC", 16), 0, 1, 8)
    found = mistaken([target], target, source_blocks=[2], target_blocks=[2], assumed_layout=qwen(1, "LBNHC", 32))
    assert found.coverage == pytest.approx(1 / 28)  # layer 0 alone
    assert found.outside == 14 * 65536
    assert mistaken([target], target, source_blocks=[2], target_blocks=[2], assumed_layout="LBNHC").is_right


def test_kernel_blocks_against_manager_blocks():
    split = qwen(1, "LBNHC", block_size=64, kernel_block_size=16)
    whole = qwen(1, "LBNHC", block_size=64)
    assert split.shape(0)[0] == 4 * whole.shape(0)[0]
    target = Side(whole, 0, 1, 8)
    by_manager = exchange([Side(split, 0, 1, 8, block_ids="manager")], target, source_blocks=[3], target_blocks=[5])
    by_kernel = exchange([Side(split, 0, 1, 8)], target, source_blocks=[12, 13, 14, 15], target_blocks=[5])
    assert by_manager.is_right and by_kernel.is_right
    assert by_manager.segments.source_offset.tolist() == by_kernel.segments.source_offset.tolist()
    mixed = exchange([Side(split, 0, 1, 8)], target, source_blocks=[3], target_blocks=[5])
    assert mixed.coverage == 0.25


def test_mla_is_one_latent_on_every_rank():
    maps = [make_plan(Selection(model="deepseek-ai/DeepSeek-V3.2-Exp", tp_size=size, num_blocks=6)).address_map
            for size in (8, 4)]
    found = exchange([Side(maps[0], 6, 8, 1)], Side(maps[1], 0, 4, 1), source_blocks=[1, 5], target_blocks=[4, 2])
    assert found.is_right
    assert "page" in {region.interior.scope for region in maps[0].regions}


def test_hybrid_groups_have_blocks_of_their_own():
    gemma = make_plan(Selection(model="google/gemma-3-27b-it", num_blocks=16)).address_map
    side = Side(gemma, 0, 1, 16)
    apart = {group: [2 * group, 2 * group + 1] for group in range(7)}
    assert exchange([side], side, source_blocks=apart, target_blocks=apart).is_right
    # One list for all groups: they overlay the same bytes, so block ids collide.
    assert exchange([side], side, source_blocks=apart, target_blocks=[1, 2]).twice > 0


def test_recurrent_states_go_whole_or_not_at_all():
    maps = [make_plan(Selection(model="Qwen/Qwen3-Next-80B-A3B-Instruct", tp_size=size, num_blocks=8)).address_map
            for size in (1, 2)]
    blocks = {group: [group] for group in range(4)}
    one = Side(maps[1], 1, 2, 2)
    assert exchange([one], one, source_blocks=blocks, target_blocks=blocks).is_right
    with pytest.raises(LayoutError, match="recurrent state"):
        exchange([Side(maps[1], rank, 2, 2) for rank in (0, 1)], Side(maps[0], 0, 1, 2), source_blocks=blocks,
                 target_blocks=blocks)


def test_a_captured_config_on_one_side():
    plan = make_plan(Selection(model="Qwen/Qwen3-0.6B", backend="FLASH_ATTN", layout="BLHNC", num_blocks=16))
    captured = AddressMap(capture.parse(repr(plan.config)))
    found = exchange([Side(captured, 0, 1, 8)], Side(qwen(1, "LBNHC"), 0, 1, 8), source_blocks=[3], target_blocks=[9])
    assert found.is_right and found.target_bytes == 28 * 65536
    assert fingerprint(captured) == fingerprint(plan.address_map)


def test_sides_of_other_contents_are_refused():
    fp8 = Side(qwen(1, "LBNHC", kv_cache_dtype="fp8"), 0, 1, 8)
    bf16 = Side(qwen(1, "LBNHC"), 0, 1, 8)
    with pytest.raises(LayoutError, match="256 bytes"):
        exchange([fp8], bf16, source_blocks=[1], target_blocks=[1])


def test_a_large_cache_is_no_slower():
    large = [make_plan(Selection(model="meta-llama/Llama-3.3-70B-Instruct", backend="FLASH_ATTN", layout=layout,
                                 num_blocks=100_000, tp_size=size)).address_map
             for layout, size in (("LBNHC", 8), ("LBHNC", 4))]
    start = time.process_time()
    found = exchange([Side(large[0], rank, 8, 8) for rank in (2, 3)], Side(large[1], 1, 4, 8),
                     source_blocks=range(1, 201), target_blocks=range(99_000, 99_200))
    assert found.is_right
    assert time.process_time() - start < 5


@pytest.mark.parametrize("wrong", [
    dict(tp_rank=2), dict(tp_rank=-1), dict(tp_rank=None), dict(tp_size=0), dict(tp_size=3), dict(tp_size=True),
    dict(total_num_kv_heads=4), dict(total_num_kv_heads=float("nan")), dict(total_num_kv_heads=10**30),
    dict(layers="model"), dict(layers=["no"]), dict(layers=[3]), dict(layers=5), dict(block_ids="kernels"),
    dict(address_map=None)])
def test_bad_sides(wrong):
    fine = dict(address_map=qwen(2, "LBNHC"), tp_rank=0, tp_size=2, total_num_kv_heads=8)
    with pytest.raises(LayoutError):
        Side(**{**fine, **wrong})


@pytest.mark.parametrize("wrong", [
    dict(sources=None), dict(sources=[1]), dict(sources="abc"), dict(target=None), dict(source_blocks=[16]),
    dict(source_blocks=[-1]), dict(source_blocks=None), dict(source_blocks=[[1], [2]]), dict(source_blocks="12"),
    dict(source_blocks=[True]), dict(source_blocks=[float("nan")]), dict(source_blocks={1: [2]}),
    dict(target_blocks=[]), dict(target_blocks=3), dict(target_blocks=[2**80]), dict(target_blocks=[[1]]),
    dict(replicas="none"), dict(replicas=None)])
def test_bad_requests(wrong):
    side = Side(qwen(2, "LBNHC"), 0, 2, 8)
    fine = dict(sources=[side], target=side, source_blocks=[1], target_blocks=[2])
    with pytest.raises(LayoutError):
        exchange(**{**fine, **wrong})
    with pytest.raises(LayoutError):
        mistaken(**{**fine, **wrong}, assumed_layout="LBHNC")


@pytest.mark.parametrize("wrong", [dict(assumed_layout="NOPE"), dict(assumed_layout=None), dict(side="both"),
                                   dict(assumed_layout=qwen(1, "LBNHC"))])
def test_bad_mistakes(wrong):
    side = Side(qwen(2, "LBNHC"), 0, 2, 8)
    with pytest.raises(LayoutError):
        mistaken(**{**dict(sources=[side], target=side, source_blocks=[1], target_blocks=[2], assumed_layout="LBHNC"),
                    **wrong})
