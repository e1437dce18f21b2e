"""Public reports as small inputs with their right values: what a lint, or a function behind one, says of each."""

import pytest

import kvlayout as kv
from kvlayout.clinic.alignment import alignments, row_fits
from kvlayout.clinic.blocks import BlockSplit, uneven_steps
from kvlayout.clinic.bounds import block_span
from kvlayout.clinic.contained import containment
from kvlayout.clinic.limits import limit_rows, offset_limits, unwrapped, wrapped
from kvlayout.clinic.linting import lint
from kvlayout.placement import get_kv_cache_config_from_groups


def names(count: int, prefix: str = "model.layers") -> list[str]:
    return [f"{prefix}.{i}.attn" for i in range(count)]


def config(groups: list, num_blocks: int, layout: str) -> kv.KVCacheConfig:
    made = [kv.KVCacheGroupSpec(*group) for group in groups]
    return get_kv_cache_config_from_groups(made, 0, kv.KVCacheLayout[layout], num_gpu_blocks_override=num_blocks)


def only(findings: list, rule: str):
    (found,) = (one for one in findings if one.rule == rule)
    return found


def latent(content: int, **fields) -> kv.MLAAttentionSpec:
    return kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=content, dtype="uint8", **fields)


@pytest.mark.parametrize(("layout", "block"), [("BLNHC", 2_341), ("BLHNC", 2_341), ("LBNHC", 65_536),
                                               ("LBHNC", 65_536)])
def test_qwen3_elements_past_2_to_the_31(layout, block):
    plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", backend="FLASH_ATTN", layout=layout, block_size=16,
                                     num_blocks=block + 1))
    rows = offset_limits(plan.address_map)
    assert [(row.unit, row.limit) for row in rows] == [
        ("bytes", 2**31), ("bytes", 2**32), ("elements", 2**31), ("elements", 2**32)]
    row = rows[2]
    assert row.first_block == block and row.is_reached and len(row.layers) == 28
    assert row.block_stride == (1_835_008 if layout[0] == "B" else 65_536)
    found = [one for one in lint(plan) if one.numbers.get("unit") == "elements"]
    assert [(one.rule, one.severity) for one in found] == [("int32-offset", "warning")]
    assert found[0].coordinate["block"] == block


def test_a_limit_one_block_ahead_is_in_the_table_but_no_finding():
    plan = kv.make_plan(kv.Selection(layout="LBNHC", num_blocks=32_768))
    assert offset_limits(plan.address_map)[0].first_block == 32_768
    assert not offset_limits(plan.address_map)[0].is_passed
    assert not [one for one in lint(plan) if one.rule == "int32-offset"]


def test_xpu_kernels_445_names_block_2066_from_the_wrapped_address():
    stride = 1_039_680
    assert 2_065 * stride == wrapped(2_065 * stride) == 2_146_939_200
    assert wrapped(2_066 * stride) == -2_146_988_416
    assert unwrapped(-2_146_988_416, stride, 3_000) == [(2_066, 0)]
    assert unwrapped(-2_146_988_416 + 77, stride, 3_000) == [(2_066, 77)]
    assert limit_rows(["a"], 1, stride, 3_000, 3_000 * stride - 1)[0].first_block == 2_066


def test_kvcached_321_limits_of_the_descriptor():
    rows = limit_rows(["a"], 2, 2_064_384, 49_408, 49_408 * 2_064_384 - 1)
    assert [row.first_block for row in rows] == [1_041, 2_081, 2_081, 4_162]


def test_vllm_50276_the_span_of_a_block():
    made = config([(names(4), latent(584, alignment=576))], 100, "BLNHC")
    address_map = kv.AddressMap(made)
    assert made.size_bytes == 14_976_000 and address_map.strides(0)[0] == 149_760
    span = block_span(address_map, names(4)[3], 99)
    assert (span.start, span.end, span.wrong_end) == (14_938_560, 14_975_936, 15_088_320)
    assert span.past_end_bytes == 112_320 and span.victims == () and span.is_contiguous
    (victim,) = block_span(address_map, 3, 98).victims
    assert (victim.layers, victim.first_block, victim.last_block) == (tuple(names(3)), 99, 99)
    found = only(lint(made), "block-span")
    assert found.numbers["end"] == 14_975_936 and found.numbers["past_end_bytes"] == 112_320
    assert found.numbers["victims"] == [[names(3), 99]]
    assert found.coordinate == {"layer": names(4)[3], "block": 99}


def test_vllm_55431_a_block_stride_of_whole_rows():
    spec = kv.UniformTypeKVCacheSpecs(64, {**dict.fromkeys(names(78), latent(656)),
                                           **dict.fromkeys(names(23, "indexer"), latent(132))})
    groups = [(names(78) + names(23, "indexer"), spec)]
    first, second = row_fits(kv.AddressMap(config(groups, 3, "BLNHC")))
    assert first.block_stride == 3_469_056 and first.row_bytes == 656
    assert (first.remainder_bytes, first.padding_bytes) == (128, 528)
    assert (3_469_056 + 528) % 656 == 0 and second.remainder_bytes == 3_469_056 % 132
    found = [one for one in lint(config(groups, 3, "BLNHC")) if one.rule == "block-stride-rows"]
    assert found[0].numbers["padding_bytes"] == 528 and found[0].severity == "warning"
    outer = row_fits(kv.AddressMap(config(groups, 3, "LBNHC")))[0]
    assert outer.block_stride == 41_984 and outer.remainder_bytes == outer.padding_bytes == 0


def test_vllm_41257_k_is_aligned_for_even_states_only_and_v_never():
    spec = kv.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=46, dtype="bfloat16")
    made = config([(names(2), spec)], 4, "LBNHC")
    row, k, v = alignments(kv.AddressMap(made))
    assert (k.what, k.residues, k.aligned_to) == ("K", (0, 8), 8)
    assert k.first == {"layer": names(1)[0], "block": 0, "head": 0, "state": 1}
    assert (v.what, v.residues, v.aligned_to) == ("V", (4, 12), 4)
    assert v.first["state"] == 0 and row.residues == k.residues
    found = only(lint(made), "misaligned")
    assert found.numbers["V"] == {"aligned_to": 4, "residues": [4, 12]}
    singleton = only(lint(made), "singleton-stride")
    assert singleton.numbers == {"axis": "head", "stride": 184, "remainder_bytes": 8}


def test_kvcached_330_kernel_ids_with_the_manager_stride():
    split = BlockSplit(528, 16, 2_699, 528 * 4 * 256 * 2, planes=2)
    assert split.factor == 33 and split.num_kernel_blocks == 89_067
    assert split.slot(8_448) == (16, 0, 528, 0)
    assert split.block_stride == 33 * split.kernel_block_stride
    plane = split.num_blocks * split.block_stride
    assert split.with_manager_stride(2_698)[1] == "plane"
    assert split.with_manager_stride(2_699) == (plane, "other plane") and split.first_out_of_plane == 2_699
    assert split.with_manager_stride(5_397)[1] == "other plane"
    assert split.with_manager_stride(5_398) == (2 * plane, "outside") and split.first_fault == 5_398


def test_vllm_28677_manager_id_with_the_kernel_stride():
    split = BlockSplit(128, 64, 3_636 // 2, 128 * 8 * 128 * 2, planes=2)
    assert split.num_kernel_blocks == 3_636
    assert split.with_manager_id(5) == (655_360, 2, 1)
    assert list(split.kernel_ids(5)) == [10, 11] and split.offset(10) == 1_310_720


def test_vllm_54877_a_padded_page_that_is_to_be_split():
    spec = kv.FullAttentionSpec(block_size=128, num_kv_heads=1, head_size=128, dtype="bfloat16",
                                page_size_padded=81_920)
    assert spec.unpadded_page_size_bytes == 65_536
    steps = uneven_steps(spec, 4, 64)
    assert (steps.inside_step, steps.across_step) == (32_768, 49_152)
    assert (steps.asked_bytes, steps.buffer_bytes) == (606_208, 327_680)
    made = config([(names(1), spec)], 4, "LBNHC")
    with pytest.raises(kv.LayoutError):
        kv.AddressMap(made, kernel_block_sizes=[64])
    first = lint(made, kernel_block_sizes=[64])[0]
    assert first.rule == "padded-split" and first.is_error
    assert first.numbers["across_step"] == 49_152 and first.numbers["asked_bytes"] == 606_208
    assert uneven_steps(spec, 4, 128) is None
    assert not [one for one in lint(made) if one.is_error]


@pytest.mark.parametrize("layout", ["BLNHC", "BLHNC", "LBNHC", "LBHNC"])
def test_vllm_41657_equal_slots_are_not_what_aliases(layout):
    a = kv.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    b = kv.SlidingWindowSpec(block_size=32, num_kv_heads=4, head_size=128, dtype="bfloat16", sliding_window=1024)
    assert a.page_size_bytes == b.page_size_bytes == 65_536
    made = config([(names(3, "a"), a), (names(3, "b"), b)], 10, layout)
    address_map = kv.AddressMap(made)
    answer = containment(address_map)
    assert answer.is_contained and answer.crossings == ()
    assert answer.kind == ("interval" if layout[0] == "B" else "pages")
    # Slot 32 is block 2 in A and block 1 in B: other bytes.
    assert address_map.offset("a.0.attn", 2) != address_map.offset("b.0.attn", 1)
    assert address_map.offset("a.0.attn", 2) == address_map.offset("b.0.attn", 2)
    found = lint(made)
    assert "only for equal block ids" in only(found, "overlay").message
    assert not [one for one in found if one.is_error]
