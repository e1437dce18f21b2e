"""Slots: block, row, kernel block and addresses, the same in every group and under two block sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.address import AddressMap
from kvlayout.clinic.slot_reports import slot_report
from kvlayout.clinic.slots import compare_block_sizes, context_parallel_slot, decode_slot, usable_tokens
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.plan import make_plan
from kvlayout.selection import Selection
from kvlayout.slot_mapping import predict
from kvlayout.spec import (
    AttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from tests.strategies import maps


def attention(block_size, heads, head_size=128):
    return FullAttentionSpec(block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype="bfloat16")


def map_of(*groups, layout="LBNHC", num_blocks=8, **choices):
    groups = [KVCacheGroupSpec(names, spec) for names, spec in groups]
    config = get_kv_cache_config_from_groups(groups, 0, layout, num_gpu_blocks_override=num_blocks)
    return AddressMap(config, **choices)


def test_vllm_47056_the_wrong_block_size_leaves_the_pool():
    right, wrong = compare_block_sizes(75_849, [16, 4], 16_384)
    assert (right.block, right.row, right.in_pool) == (4_740, 9, True)
    assert (wrong.block, wrong.in_pool) == (18_962, False)
    assert "OUT of the pool of 16,384" in wrong.line
    assert decode_slot(75_849, 16) == (4_740, 9)


def test_kvcached_330_manager_and_kernel_block_of_one_slot():
    assert decode_slot(8_448, 528, 16) == (16, 0, 528, 0)
    # K and V apart: the K plane, 4 heads of 256.
    address_map = map_of((["k"], attention(528, 4, 256)), num_blocks=2_699, kernel_block_sizes=[16])
    assert address_map.shape("k")[0] == 89_067
    entry, = slot_report(8_448, address_map)
    assert (entry.block, entry.row, entry.kernel_block, entry.kernel_row) == (16, 0, 528, 0)
    assert entry.addresses[0, 0] == 528 * address_map.strides("k")[0] == 8_448 * 4_096


def test_kvcached_398_block_0_and_a_negative_slot():
    assert usable_tokens(3, 16) == 32 and usable_tokens(0, 16) == usable_tokens(1, 16) == 0
    address_map = map_of((["a"], attention(16, 2)))
    entry, = slot_report(5, address_map)
    assert (entry.block, entry.row) == (0, 5)
    assert any("null block" in note for note in entry.notes)
    ignored, = slot_report(-1, address_map)
    assert (ignored.block, ignored.row, ignored.in_pool) == (None, None, None)
    assert (ignored.addresses == -1).all() and "ignores" in ignored.notes[0]
    assert decode_slot(-1, 16) == (None, None) and decode_slot(-1, 16, 8) == (None,) * 4


def test_vllm_51031_decode_context_parallel():
    assert context_parallel_slot(300, 5, 128, 4, 128) == (2, 684)
    assert decode_slot(684, 128, 64) == (5, 44, 10, 44)
    assert context_parallel_slot(300, 5, 64, 4, 64) != (2, 684)  # 64 in place of 128: another rank and slot
    window = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=128, dtype="bfloat16", sliding_window=64)
    full, sliding = slot_report(20, map_of((["a"], attention(16, 2)), (["b"], window)))
    assert not any("context" in note for note in full.notes)
    assert any("aren't transformed" in note for note in sliding.notes)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_context_parallel_places_each_token_of_a_table_entry_once(chunks, interleave, cp_size, block):
    block_size = chunks * interleave
    span = block_size * cp_size
    found = {context_parallel_slot(block * span + p, block, block_size, cp_size, interleave) for p in range(span)}
    assert found == {(rank, block * block_size + row) for rank in range(cp_size) for row in range(block_size)}
    for p in range(span):  # vLLM's kernel: who is the chunk's rank
        assert context_parallel_slot(p, 0, block_size, cp_size, interleave)[0] == p // interleave % cp_size


def test_vllm_41657_equal_slots_arent_equal_memory():
    address_map = map_of((["a"], attention(16, 8)), (["b"], attention(32, 4)), layout="BLHNC")
    assert {address_map.region(name).page_size_bytes for name in "ab"} == {65_536}
    first, second = slot_report(32, address_map)
    assert (first.block, first.row, second.block, second.row) == (2, 0, 1, 0)
    assert any("share no byte" in note for note in first.notes)


def test_vllm_28677_manager_block_5_is_kernel_blocks_10_and_11():
    # One of the planes K and V: 128 values a state and head.
    spec = attention(128, 8, 64)
    address_map = map_of((["k"], spec), num_blocks=1_818, kernel_block_sizes=[64])
    assert address_map.shape("k")[0] == 3_636
    first, second = (slot_report(5 * 128 + row, address_map)[0] for row in (0, 64))
    assert (first.kernel_block, second.kernel_block) == (10, 11)
    assert first.addresses[0, 0] == 1_310_720
    assert decode_slot(655_360 // 2_048, 128) == (2, 64)  # where the wrong product leads: block 2's second half


@given(maps(), st.data())
def test_the_report_agrees_with_the_address_map(address_map, data):
    config = address_map.config
    slot = data.draw(st.integers(0, max(1, config.num_blocks) * 8 + 3))
    for entry in slot_report(slot, address_map, kernel=data.draw(st.booleans())):
        specs = config.kv_cache_groups[entry.group].layer_specs
        if not all(isinstance(one, AttentionSpec) for one in specs.values()):
            assert entry.block is None and (entry.addresses == -1).all() and entry.notes
            continue
        assert entry.block * entry.block_size + entry.row == slot
        assert entry.in_pool == (entry.block < config.num_blocks)
        if not entry.in_pool:
            assert (entry.addresses == -1).all()
            continue
        for name, row in zip(entry.layers, entry.addresses):
            heads = address_map.shape(name)[1]
            assert (row[heads:] == -1).all()
            for head, address in enumerate(row[:heads].tolist()):
                if address < 0:
                    continue
                mine, = (o for o in address_map.owners(address) if o.group == entry.group)
                assert (mine.layer, mine.head, mine.byte) == (name, head, 0)
                size = (address_map.kernel_block_sizes or {entry.group: entry.block_size})[entry.group]
                manager = mine.block * size // entry.block_size
                assert manager == entry.block


def test_the_report_agrees_with_a_prediction_of_a_write():
    plan = make_plan(Selection(num_blocks=40))
    entry, = slot_report(37, plan.address_map)
    wanted = predict(plan.address_map, 0, [37])
    assert entry.addresses.shape == (28, 8)
    place = int(wanted.block[0]), np.arange(8), int(wanted.state[0])
    expected = plan.address_map.offset(np.arange(28)[:, None], *place)
    assert (entry.addresses == expected).all()
    assert "37 = 2 x 16 + 5" in entry.lines[0]
    assert f"{entry.addresses[0, 0]:,}" in entry.lines[-1]


def test_states_that_arent_tokens_are_said_so():
    mamba = MambaSpec(16, [(4, 8)], ["bfloat16"])
    compressed = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", tokens_per_state=4)
    address_map = map_of((["m"], mamba), (["c"], compressed))
    state, shared = slot_report(16 + 6, address_map)
    assert state.block is None and any("one recurrent state a block" in note for note in state.notes)
    assert any("4 tokens share one state" in note for note in shared.notes)
    assert shared.states.tolist() == [1]


def test_a_slot_beyond_the_pool_is_an_answer():
    entry, = slot_report(8 * 16, map_of((["a"], attention(16, 2))))
    assert (entry.block, entry.in_pool) == (8, False)
    assert "beyond the pool of 8 blocks" in entry.notes[0]
    huge, = slot_report(2**63 - 1, map_of((["a"], attention(16, 2))))
    assert huge.in_pool is False


def test_layers_of_one_group_may_differ_in_heads():
    both = UniformTypeKVCacheSpecs(16, {"a": attention(16, 2), "b": attention(16, 4)})
    entry, = slot_report(17, map_of((["a", "b"], both)))
    assert entry.addresses.shape == (2, 4)
    assert (entry.addresses >= 0).tolist() == [[True, True, False, False], [True] * 4]


def test_the_arithmetic_of_a_split_block_counts_kernel_blocks():
    entry, = slot_report(40, map_of((["a"], attention(32, 2)), kernel_block_sizes=[16]))
    assert "kernel block 2, row 8: 40 = 2 x 16 + 8; 2 kernel blocks a block" in entry.lines[1]
    assert f"+ kernel block 2 x 16,384 + state 8 x 1,024 = byte {entry.addresses[0, 0]:,}" in entry.lines[2]


def test_an_empty_pool_says_so():
    empty = KVCacheConfig(0, [KVCacheTensor(0, ("a",), 0, 0)], [KVCacheGroupSpec(("a",), attention(16, 2))], "LBNHC")
    assert "has no blocks" in slot_report(3, AddressMap(empty))[0].notes[0]


@pytest.mark.parametrize("call", [
    lambda: decode_slot(1.5, 16), lambda: decode_slot(True, 16), lambda: decode_slot("3", 16),
    lambda: decode_slot(3, 0), lambda: decode_slot(3, 16, 5), lambda: decode_slot(float("nan"), 16),
    lambda: decode_slot(2**63, 16), lambda: decode_slot(None, 16),
    lambda: context_parallel_slot(-1, 0, 16, 2), lambda: context_parallel_slot(0, 0, 16, 2, 3),
    lambda: context_parallel_slot(0, 0, 16, 0), lambda: context_parallel_slot(0, -1, 16, 1),
    lambda: compare_block_sizes(3, []), lambda: compare_block_sizes(3, "16"), lambda: compare_block_sizes(3, [16, 0]),
    lambda: compare_block_sizes(3, [16], [1, 2]), lambda: compare_block_sizes(3, [16], -1),
    lambda: usable_tokens(-1, 16), lambda: usable_tokens(2, 0),
    lambda: slot_report([1], map_of((["a"], attention(16, 2)))), lambda: slot_report(1, None),
])
def test_bad_input_is_one_clear_error(call):
    with pytest.raises(LayoutError):
        call()
