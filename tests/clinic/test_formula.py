"""The hypothesis overlay by public reports with their right values, its bounds, and formulas that are none."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.clinic import CLASSICS, compare_formula, explain_address, formula_at, right_formula
from kvlayout.clinic import formula as formulas
from kvlayout.clinic.formula_sample import _stands_for
from kvlayout.interior import Field, Interior
from kvlayout.placement import get_kv_cache_config_from_groups


def cache(spec, layers=1, num_blocks=4, layout="LBNHC", **options):
    groups = [kv.KVCacheGroupSpec([f"layers.{i}" for i in range(layers)], spec)]
    return kv.AddressMap(get_kv_cache_config_from_groups(groups, 0, kv.KVCacheLayout[layout],
                                                         num_gpu_blocks_override=num_blocks), **options)


def attention(num_kv_heads=8, block_size=16, head_size=128, dtype="bfloat16", **fields):
    return kv.FullAttentionSpec(block_size=block_size, num_kv_heads=num_kv_heads, head_size=head_size, dtype=dtype,
                                **fields)


@pytest.fixture(scope="module")
def packed():
    """vllm#50276: four MLA layers of 584 bytes a state, pages of 37,376 aligned to 37,440, block-outermost."""
    return cache(kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=584, dtype="uint8", alignment=576), 4,
                 100, "BLHNC")


@pytest.fixture(scope="module")
def scales_at_tail():
    """vllm#40991: 64 states of 128 fp8 bytes, then 64 fp32 scales."""
    spec = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype="uint8")
    fields = Field("K", 0, 128, state_stride=128), Field("K scale", 8192, 1, 32, state_stride=4)
    return cache(spec, num_blocks=3, interiors={"layers.0": Interior(fields, "page")})


PAGE = "layer_offset + block * block_stride"


def test_vllm_50276_a_block_stride_is_not_a_pages_length(packed):
    found = compare_formula(PAGE, packed, length="block_stride", layers=[3], blocks=[99])
    assert found.first == ("layers.3", 99, 0, 0, 0) and found.checked == 1 and found.share == 1
    assert found.expected == found.found == 14_938_560 and found.found_end == 15_088_320
    assert found.outside == 112_320 and found.victims == ()
    assert found.hit_offset == packed.size_bytes == 14_976_000  # its own padding, 64 bytes, may be touched
    found = compare_formula(PAGE, packed, length="block_stride", layers=[3], blocks=[98])
    assert found.outside == 0 and found.hit_offset == 99 * 149_760
    # Layers 0 to 2 of block 99, and what pads their pages.
    assert {(hit.layer, hit.bytes) for hit in found.victims} == {
        ("layers.0", 37_376), ("layers.1", 37_376), ("layers.2", 37_376), (None, 3 * 64)}
    assert {hit.example.block for hit in found.victims} == {99}
    everywhere = compare_formula(PAGE, packed, length="block_stride")
    assert everywhere.outside == 112_320 and everywhere.share == 1 and everywhere.checked == 400
    assert everywhere.map.shape == (4, 100) and everywhere.cells.tolist() == [[1]]
    right = compare_formula(PAGE, packed, length="page_bytes")
    assert right.cells.tolist() == [[0]]
    assert compare_formula(PAGE + " + token * 584", packed, length="584").cells.tolist() == [[0] * 64]
    for length in ("page_bytes", "page_content_bytes"):
        assert compare_formula(PAGE, packed, length=length).is_right
    assert compare_formula(PAGE, packed, length="page_bytes + 1").first == ("layers.0", 0, 0, 0, 0)


def test_a_whole_packed_block_is_a_coordinate_too(packed):
    assert compare_formula("block * block_stride", packed, length="block_stride").is_right
    found = compare_formula("block * block_stride", packed, length="block_stride + 1")
    assert found.share == 1 and found.outside == 1 and found.victims[0].bytes == 99
    assert compare_formula("0", packed, length="size_bytes").is_right


def test_vllm_54465_a_flat_slot_lands_in_padding(packed):
    found = compare_formula("layer_offset + slot * num_heads * content_bytes + element", packed, layers=1, blocks=1)
    assert found.first == ("layers.1", 1, 0, 0, 0)
    assert (found.expected, found.found) == (187_200, 74_816)
    (padding,) = found.hits
    assert (padding.kind, padding.layer, padding.block, padding.start, padding.end) == (
        "page", "layers.1", 0, 74_816, 74_880)
    assert any("padding of layers.1, block 0" in text for text in found.sentences())


def test_one_coordinate():
    two = cache(attention(), 2)
    assert formula_at("slot * 512", two, "layers.1", 3, 2, 5, 7) == (two.offset(1, 3, 2, 5, 14), (3 * 16 + 5) * 512)
    for wrong in ((2, 0), (0, 4), (0, 0, 8), (0, 0, 0, 16), (0, 0, 0, 0, 256), (0, 0.5), (0, 0, None), ("no", 0)):
        with pytest.raises(kv.LayoutError):
            formula_at("0", two, *wrong)


def test_vllm_28677_the_managers_id_with_the_kernel_stride():
    spec = attention(block_size=128, head_size=64)  # K alone, as planes apart have it: 256 bytes a state
    split = cache(spec, num_blocks=1_818, kernel_block_sizes=[64])
    wrong = "(block // kernel_blocks_per_block) * block_stride + head * head_stride + token * state_stride"
    found = compare_formula(wrong, split, length="content_bytes", blocks=[10, 11])
    assert (found.expected, found.found) == (1_310_720, 655_360) and found.share == 1
    assert (found.hits[0].block, found.hits[0].state) == (5, 0)  # manager block 2, its second half


def test_kvcached_330_the_kernel_id_with_the_managers_stride():
    spec = attention(num_kv_heads=4, block_size=528, head_size=128)
    split = cache(spec, num_blocks=2_699, kernel_block_sizes=[16])
    found = compare_formula("block * manager_block_stride", split, length="page_content_bytes",
                            blocks=[0, 528, 2_698, 2_699])
    assert split.shape(0)[0] == 89_067 and found.share == 3 / 4
    assert found.first.block == 528 and found.found == 33 * found.expected
    assert found.outside == split.region(0).page_size_bytes  # id 2,699 begins exactly at the plane's end


def test_vllm_40991_scales_beside_each_state(scales_at_tail):
    found = compare_formula("block * block_stride + token * 132 + element", scales_at_tail, blocks=0)
    assert found.first == ("layers.0", 0, 0, 0, 128) and (found.expected, found.found) == (8_192, 128)
    assert found.share == 1 - (128 + 4) / 8_448
    assert found.cells[0, 1] == 1 and found.cells[0, 0] == 4 / 132 and found.cells[0, 63] == 128 / 132

    right = "layer_offset + block * block_stride + token * field_state_stride + field_offset"
    assert compare_formula(right, scales_at_tail).is_right
    # The reader's mistake at state 1 alone: its data, and its scale.
    for where, lies, taken in (("token == 1", 128, 132), ("token == 1 and element >= 128", 8_196, 260)):
        found = compare_formula(f"token * 132 + element if {where} else {right}", scales_at_tail, blocks=0)
        assert found.first.token == 1 and (found.expected, found.found) == (lies, taken)


def test_vllm_42740_nhd_read_as_hnd():
    found = compare_formula("layer_offset + block * block_stride + (head * num_states + token) * content_bytes "
                            "+ element * element_stride", cache(attention()))
    assert found.first == ("layers.0", 0, 0, 1, 0) and (found.expected, found.found) == (4_096, 512)
    assert found.share == 126 / 128
    assert np.argwhere(found.cells == 0).tolist() == [[0, 0], [7, 15]]
    assert (found.map == 126 / 128).all() and found.map.shape == (1, 4)


def test_xpu_kernels_445_a_product_that_wraps():
    spec = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=1_039_680 // 64, dtype="uint8")
    wraps = cache(spec, num_blocks=3_000)
    found = compare_formula("int32(block * block_stride) + token * state_stride + element", wraps)
    assert found.sampled and "3,000 blocks" in " ".join(found.sample)
    assert (found.first.block, found.found) == (2_066, -2_146_988_416)
    assert {0, 1, 2_065, 2_066, 2_998, 2_999} <= set(found.blocks.tolist())
    assert explain_address(found.found, wraps).wrapped[0].block == 2_066


def test_in_a_hybrid_another_groups_overlay_of_the_same_block_is_no_victim():
    specs = [attention(2), attention(2), attention(2)]
    groups = [kv.KVCacheGroupSpec([f"{letter}.0", f"{letter}.1"], spec) for letter, spec in zip("abc", specs)]
    hybrid = kv.AddressMap(get_kv_cache_config_from_groups(groups, 0, kv.KVCacheLayout.BLNHC,
                                                           num_gpu_blocks_override=4))
    found = compare_formula(PAGE, hybrid, length="block_stride", layers="a.0", blocks=1)
    # a.1 of the same block, but b's and c's overlay of it may lie there; then half of block 2 is nobody's worry yet.
    assert {(hit.group, hit.layer) for hit in found.victims} == {(0, "a.1")}
    found = compare_formula(PAGE, hybrid, length="block_stride", layers="a.1", blocks=1)
    assert {(hit.layer, hit.example.block) for hit in found.victims} == {("a.0", 2), ("b.0", 2), ("c.0", 2)}


def test_a_callable_gets_what_it_declares():
    seen = {}

    def mine(block, head, *, block_stride, head_stride, extra=3, **rest):
        seen.update(rest)
        return rest["layer_offset"] + block * block_stride + head * head_stride + rest["inner_offset"] - \
            head * head_stride

    assert compare_formula(mine, cache(attention(2))).is_right
    assert "field_offset" in seen and seen["token"].shape == (1, 1, 16, 1) and seen["num_states"] == 16
    assert compare_formula(lambda block, block_stride: block * block_stride, cache(attention(2)),
                           length=lambda page_bytes: page_bytes).is_right


def test_80_layers_and_100000_blocks_are_sampled_and_say_so():
    big = cache(attention(), 80, 100_000, "BLNHC")
    began = time.process_time()
    found = compare_formula(right_formula(big), big)
    assert time.process_time() - began < 5 and found.is_right and found.sampled
    assert found.checked <= 2 << 20 and len(found.layers) == 80
    assert "100,000 blocks" in found.sentences()[0] and "of 256 elements" in found.sentences()[0]
    # 2^31 and 2^32 bytes and elements: the packed block takes 5,242,880 bytes.
    edges = {(unit * limit) // 5_242_880 for unit in (1, 2) for limit in (2**31, 2**32)}
    assert edges | {0, 1, 99_998, 99_999} <= set(found.blocks.tolist())
    wrapped = compare_formula("layer_offset + int32(block * block_stride) + inner_offset", big)
    assert wrapped.first.block == -(-2**31 // 5_242_880)
    spans = compare_formula(PAGE, big, length="block_stride")
    assert spans.share == 1 and spans.outside == 79 * 65_536 and spans.num_victims == 80
    assert len(spans.victims) == 16
    with pytest.raises(kv.LayoutError, match=r"more than .* coordinates to check.*Name fewer"):
        compare_formula(PAGE, big, layers=range(80), blocks=range(100_000))
    with pytest.raises(kv.LayoutError, match="coordinates to check"):
        compare_formula("0", big, blocks=range(100_000))
    exact = compare_formula(PAGE + " + inner_offset", big, layers=[5], blocks=[7, 99_999])
    assert exact.checked == 2 * 32_768 and not exact.sampled and exact.layers == ("layers.5",)
    one_layer = compare_formula(PAGE + " + inner_offset", big, layers=[5])
    assert one_layer.is_right and one_layer.sampled and one_layer.layers == ("layers.5",)


def test_a_pool_of_no_blocks_and_no_layers():
    for empty in (cache(attention(), num_blocks=0), kv.AddressMap(kv.KVCacheConfig(1, (), ()), "LBNHC")):
        for length in (None, "block_stride"):
            found = compare_formula(PAGE, empty, length=length)
            assert found.checked == 0 and found.first is None and not found.is_right and found.cells is None
            assert found.sentences() == ["There is nothing to check: these layers have no byte."]


def test_the_share_is_never_rounded_to_none_or_all():
    found = compare_formula("layer_offset + slot * 4096 + head * 512 + element * 2 + (slot == 999 and head == 0 and "
                            "element == 0)", cache(attention(), num_blocks=64))
    assert found.sentences()[0].startswith("Under 0.1% of all ")


def raising(block):
    raise RuntimeError("boom\n" * 3)


def branching(block):
    return 1 if block > 2 else 0


def writing(block):
    block *= 2
    return block


@pytest.mark.parametrize(("formula", "words"), [
    ("", "one expression"), ("block * hed_stride", "hed_stride.*not known.*head_stride"),
    ("block.shape", "not allow"), ("__import__('os')", "__import__"),
    ("block // 0", "divides by zero"), ("block << 62 << 62", "passes 63 bits"),
    ("2 ** 999", "not allowed"), ("1 << 62", "beyond 62 bits"), (None, "text or a function"),
    (3, "text or a function"), (["block"], "text or a function"), (raising, "raised RuntimeError: boom boom boom"),
    (branching, "raised ValueError.*numpy.where"), (writing, "raised ValueError.*read-only"),
    (lambda block: block * 0.5, "whole numbers"), (lambda block: block + float("nan"), "whole numbers"),
    (lambda block: "12", "whole numbers"), (lambda block: None, "whole numbers"), (lambda block: block > 1, "whole"),
    (lambda block: 10**40, "whole numbers"), (lambda block: 2**62, "beyond 62 bits"), (lambda: -2**62, "beyond 62"),
    (lambda block: np.zeros(7, dtype=int), r"shape \(7,\) for a mesh"),
    (lambda block: [[1], [2, 3]], "whole numbers"), (lambda block: object(), "whole numbers"),
    (lambda block: np.zeros((9, 4, 8, 16, 256), dtype=int), "for a mesh"),
    (lambda blok: blok, "takes 'blok', which is no name"), (lambda block, /: block, "by keyword"),
    (print, "whole numbers"), (min, "doesn't say|whole numbers|raised"),
    (dict.fromkeys, "raised|no name|doesn't say"),
    (lambda **names: names["nothing"], "raised KeyError"),
])
def test_what_is_no_formula_is_refused_in_a_sentence(formula, words):
    with pytest.raises(kv.LayoutError, match=f"(?s){words}") as error:
        compare_formula(formula, cache(attention()))
    assert error.value.argument == "formula" and "\n" not in str(error.value)
    with pytest.raises(kv.LayoutError, match=f"(?s){words}") as error:
        compare_formula(PAGE, cache(attention()), length=formula if formula is not None else 3)
    assert error.value.argument == "length"


@pytest.mark.parametrize("options", [
    {"layers": []}, {"layers": ["nothing"]}, {"layers": 9}, {"layers": [1.5]}, {"layers": object()}, {"blocks": []},
    {"blocks": [4]}, {"blocks": -1}, {"blocks": "all"}, {"blocks": [0.5]}, {"layers": [-1]},
    {"blocks": [[1], [2, 3]]},
    {"length": "-1"}, {"length": "0 - block"},
])
def test_choices_that_are_not_there(options):
    with pytest.raises(kv.LayoutError) as error:
        compare_formula(PAGE, cache(attention()), **options)
    assert error.value.argument in (*options, "layer")


def test_a_long_formula_is_checked_at_fewer_coordinates():
    hybrid = kv.make_plan(kv.Selection(model="Qwen/Qwen3-Next-80B-A3B-Instruct")).address_map
    long = "+".join(["(slot*element^head)"] * 100)
    began = time.process_time()
    found = compare_formula(long, hybrid)
    assert time.process_time() - began < 5 and 0 < found.checked < compare_formula("slot", hybrid).checked / 8
    assert compare_formula("0", hybrid, layers=0, blocks=1).checked == 1_097_728
    with pytest.raises(kv.LayoutError, match="more than .* coordinates"):
        compare_formula(long, hybrid, layers=0, blocks=1)


def test_an_address_map_is_asked_for():
    with pytest.raises(kv.LayoutError, match="address_map"):
        compare_formula(PAGE, kv.make_plan(kv.Selection()))


@pytest.mark.parametrize("formula", ["0 - (1 << 61)", "1 << 61", "0 - block * block_stride - 1"])
def test_far_away_is_an_answer(formula):
    for length in (None, "1 << 61"):
        found = compare_formula(formula, cache(attention()), length=length, blocks=[1])
        assert found.share == 1 and found.outside > 0 and (length or found.hits == ())


def test_a_sample_leaves_out_no_first_coordinate_of_the_first_page_that_diverges():
    plan = kv.make_plan(kv.Selection(model="google/gemma-3-27b-it", layout="LBNHC", num_blocks=512))
    found = compare_formula(CLASSICS["nhd-as-hnd"].formula, plan.address_map)
    assert found.sample and (found.first.head, found.first.token, found.first.element) == (0, 1, 0)
    assert (found.expected, found.found) == (8_192, 512)


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(0, 40))
def test_each_index_counts_for_the_nearest_that_are_kept(kept, more):
    kept, extent = sorted(kept), max(kept) + 1 + more
    expected = dict.fromkeys(kept, 0.0)
    for index in range(extent):
        below, above = [at for at in kept if at <= index], [at for at in kept if at >= index]
        for at in (below[-1:] or above[:1])[0], (above[:1] or below[-1:])[0]:
            expected[at] += 0.5
    assert _stands_for(np.array(kept), range(extent)).tolist() == list(expected.values())


def test_xpu_kernels_445_share_is_that_of_all_blocks():
    spec = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=1_039_680 // 64, dtype="uint8")
    found = compare_formula(CLASSICS["int32-bytes"].formula, cache(spec, num_blocks=2_100))
    assert found.share == pytest.approx(34 / 2_100, rel=1e-12) and found.sampled
    assert found.sentences()[0].startswith("1.6% of all coordinates diverge, estimated from the ")
    assert found.leaves == (("layers.0", 2_066, True),)


@pytest.mark.parametrize(("formula", "length"), [
    (CLASSICS[slug].formula, CLASSICS[slug].length) for slug in CLASSICS] + [
    ("layer_offset + int32(block * block_stride) + inner_offset", None), ("0", None),
    ("layer_offset + block * 0", "page_bytes"),
    ("block * block_stride + inner_offset + (element == 0)", None),
    ("layer_offset + block * block_stride + inner_offset + (token == num_states - 1)", None)])
@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC", "BLNHC"])
def test_a_samples_share_is_that_of_all_coordinates(formula, length, layout, monkeypatch):
    padded = 4_000_000 if layout[0] == "B" else None  # so that blocks pass 2^31
    spec = attention(num_kv_heads=2, block_size=4, head_size=4, page_size_padded=padded)
    one = cache(spec, 3, 600, layout)
    exact = compare_formula(formula, one, length=length, blocks=range(600))
    monkeypatch.setattr(formulas, "BUDGET", 1_000)
    monkeypatch.setattr(formulas, "_SPANS", 300)
    found = compare_formula(formula, one, length=length)
    assert not exact.sampled and found.checked <= exact.checked
    assert found.share == pytest.approx(exact.share, abs=0.03)
    assert (found.share == 0, found.share == 1) == (exact.share == 0, exact.share == 1)
    assert found.leaves == exact.leaves


def test_kvcached_330_says_from_which_block_on_the_allocation_is_left():
    planes = cache(attention(num_kv_heads=4, block_size=528), 2, 2_699, kernel_block_sizes=[16])
    found = compare_formula("block * manager_block_stride", planes, length="page_content_bytes")
    assert found.leaves == (("layers.0", 5_398, True),)
    text = " ".join(found.sentences())
    assert "leaves the allocation at kernel block 5,398 (manager block 163, part 20 of 33)" in text
    found = compare_formula(CLASSICS["kernel-id-manager-stride"].formula, planes)
    assert found.leaves == (("layers.1", 2_699, True), ("layers.0", 5_398, True))
    assert "First at layers.0, kernel block 1 (manager block 0, part 2 of 33), head 0" in " ".join(found.sentences())
    assert compare_formula(right_formula(planes), planes).leaves == ()
    assert compare_formula("size_bytes", planes).leaves == (("layers.0", 0, True),)


@pytest.mark.parametrize("num_blocks", [3_000_000, 10**8, 10**11])
def test_any_number_of_blocks_costs_the_same(num_blocks):
    big = kv.make_plan(kv.Selection(model="meta-llama/Llama-3.3-70B-Instruct", num_blocks=num_blocks)).address_map
    began = time.process_time()
    found = compare_formula(CLASSICS["int32-bytes"].formula, big)
    assert time.process_time() - began < 3 and found.blocks[-1] == num_blocks - 1
    step = big.strides(0)[0]
    assert found.first.block == 2**31 // step and found.share == pytest.approx(1 - 2**31 / step / num_blocks)
    assert compare_formula("block", big, blocks=[num_blocks - 1], layers=0).checked


def test_a_length_of_0_shows_nothing(packed):
    for length in ("0", "block * 0"):
        found = compare_formula(PAGE, packed, length=length)
        assert not found.is_right and found.first is None and found.touches_nothing
        assert "The length is 0 at all" in found.sentences()[0] and "Right" not in " ".join(found.sentences())
    some = compare_formula(PAGE, packed, length="block")  # block 0 alone touches nothing
    assert some.is_right and not some.touches_nothing
