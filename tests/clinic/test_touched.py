"""What a sequence touches, against counting bytes one by one."""

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.address import AddressMap
from kvlayout.clinic.touch import touched
from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.plan import make_plan
from kvlayout.selection import Selection
from kvlayout.spec import AttentionSpec, FullAttentionSpec
from tests.strategies import maps

QWEN = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")


def qwen(layout, num_blocks=64, num_layers=28):
    group = KVCacheGroupSpec([f"layers.{i}" for i in range(num_layers)], QWEN)
    return AddressMap(get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=num_blocks))


@given(maps(), st.data())
def test_counts_are_those_of_the_touched_bytes(address_map, data):
    config = address_map.config
    group = data.draw(st.integers(0, len(config.kv_cache_groups) - 1))
    specs = config.kv_cache_groups[group].layer_specs
    names = data.draw(st.lists(st.sampled_from(list(specs)), min_size=1, unique=True))
    table = data.draw(st.lists(st.integers(0, config.num_blocks - 1), max_size=6))
    size = config.kv_cache_groups[group].kv_cache_spec.block_size
    tokens = data.draw(st.one_of(st.none(), st.integers(0, len(table) * size)))
    kernel_size = (address_map.kernel_block_sizes or {group: size})[group]
    expected = set()
    for name in names:
        _, heads, states, content = address_map.shape(name)
        for position in range(len(table) * size if tokens is None else tokens):
            block, row = table[position // size], position % size
            if block == 0:
                continue
            kernel_block, kernel_row = divmod(block * size + row, kernel_size)
            if isinstance(specs[name], AttentionSpec):
                per_state = Fraction(specs[name].tokens_per_state)
                state = range(int(kernel_row // per_state), int(-(-(kernel_row + 1) // per_state)))
                state = [one for one in state if one < states]
            else:
                state = range(states)
            for head in range(heads):
                for one in state:
                    expected.update(address_map.offset(name, kernel_block, head, one, np.arange(content)).tolist())
    found = touched(address_map, table, tokens, names)
    assert found.bytes == len(expected)
    assert found.num_runs == len([byte for byte in expected if byte - 1 not in expected])
    for unit, count in ((32, found.sectors), (128, found.lines), (2 << 20, found.pages)):
        assert count == len({byte // unit for byte in expected})
    used = table if tokens is None else table[:-(-tokens // size)]
    assert (found.blocks, found.null_blocks) == (len(set(used) - {0}), used.count(0))
    assert found.sentences()


# 28 layers, 3 blocks, the last with 8 of its 16 tokens. Pages of 65,536 bytes, head slots of 8,192 in a block.
@pytest.mark.parametrize(("layout", "runs", "pages"), [
    ("LBHNC", 28 * (1 + 8), 28), ("LBNHC", 28 * 2, 28), ("LHBNC", 28 * 8 * 2, 56),
    ("BLHNC", 1 + 28 * 8, 5), ("BLNHC", 1 + 28, 5), ("BHLNC", 1 + 8 * 28, 5)])
def test_a_request_of_a_real_model(layout, runs, pages):
    found = touched(qwen(layout), [5, 6, 9], 40)
    assert found.bytes == 40 * 28 * 8 * 512
    assert (found.sectors, found.lines) == (found.bytes // 32, found.bytes // 128)
    assert (found.num_runs, found.pages, found.blocks, found.sector_share) == (runs, pages, 3, 1)


def test_unaligned_rows_waste_sectors():
    # vllm#41257's kind: rows of 184 bytes, one state a block touched.
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=46, dtype="bfloat16")
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec(["a"], spec)], 0, "LBNHC", num_gpu_blocks_override=4)
    found = touched(AddressMap(config), [1], 1)
    assert (found.bytes, found.sectors, found.lines, found.num_runs) == (184, 6, 2, 1)
    assert found.sector_share == 184 / 192


def test_the_null_block_holds_no_token():
    found = touched(qwen("BLHNC"), [0, 0, 7])
    assert (found.blocks, found.null_blocks, found.bytes) == (1, 2, 1_835_008)
    assert "null block" in found.sentences()[1]
    assert touched(qwen("BLHNC"), []).sentences() == ["Nothing is touched."]


def test_manager_ids_are_turned_into_kernel_blocks():
    plan = make_plan(Selection(num_blocks=20, block_size=64, kernel_block_size=16))
    assert plan.address_map.shape(0)[0] == 80
    assert touched(plan.address_map, [19]).bytes == 64 * 28 * 8 * 512
    assert touched(plan.address_map, [19], 17).bytes == 17 * 28 * 8 * 512


def test_groups_of_a_hybrid_model_are_asked_one_by_one():
    plan = make_plan(Selection(model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=10))
    groups = plan.config.kv_cache_groups
    for index, group in enumerate(groups):
        found = touched(plan.address_map, [3], group=index)
        used = sum(plan.address_map.region(name).spec.unpadded_page_size_bytes for name in group.layer_names)
        assert found.bytes == used
    with pytest.raises(LayoutError, match="a block table is one group's"):
        touched(plan.address_map, [3], layers=[groups[0].layer_names[0], groups[1].layer_names[0]])


@pytest.mark.parametrize("layout", list(KVCacheLayout))
def test_a_long_sequence_is_fast(layout):
    address_map = qwen(layout, num_blocks=100_000, num_layers=80)
    begin = time.process_time()
    found = touched(address_map, np.arange(1, 100_000))
    assert found.bytes == 99_999 * 80 * 65_536
    scattered = np.random.default_rng(0).permutation(100_000)[:4_000]
    found = touched(address_map, scattered[scattered > 0], layers=range(80))
    assert time.process_time() - begin < 5
    assert found.bytes == (scattered > 0).sum() * 80 * 65_536


@pytest.mark.parametrize("arguments", [
    ([64],), ([-1],), ([1.5],), (["a"],), (None,), ([[1]],), ([1], 17), ([1], -1), ([1], 1.0), ([1], True),
    ([1], None, ["nothing"]), ([1], None, [99]), ([1], None, 1.5), ([1], None, [None]), ([2**63],)])
def test_bad_input_is_one_clear_error(arguments):
    with pytest.raises(LayoutError):
        touched(qwen("LBNHC"), *arguments)
    with pytest.raises(LayoutError):
        touched(qwen("LBNHC"), [1], group=3)


def test_a_table_of_null_blocks_alone_is_told():
    assert touched(qwen("BLHNC"), [0, 0, 0]).sentences() == [
        "Nothing is touched.", "3 of the block table's entries are block 0, the null block: what holds no token "
        "isn't counted."]
