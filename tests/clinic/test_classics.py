"""Each classic mistake where it shows, with its numbers, and where it happens to be right."""

import pytest

import kvlayout as kv
from kvlayout.clinic import CLASSICS, compare_formula, right_formula
from kvlayout.clinic.formula_call import Formula
from kvlayout.interior import Field, Interior, state_interior
from tests.clinic.test_formula import attention, cache, packed, scales_at_tail  # noqa: F401


def compare(slug, address_map, **chosen):
    return compare_formula(CLASSICS[slug].formula, address_map, length=CLASSICS[slug].length, **chosen)


def latent(content, **fields):
    return kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=content, dtype="uint8", **fields)


NHD, HND = cache(attention(), 2), cache(attention(), 2, layout="LBHNC")
PACKED = cache(attention(), 2, layout="BLNHC")
# K, K scale, V, V scale in each state, as Triton's per-token-head caches keep them.
SCALES = cache(attention(num_kv_heads=2, head_size=128, dtype="uint8", state_content_bytes=264), interiors={
    "layers.0": state_interior([("K", 128, 8), ("K scale", 1, 32), ("V", 128, 8), ("V scale", 1, 32)], 264)})
TAIL = cache(latent(132), num_blocks=3, interiors={"layers.0": Interior(
    (Field("K", 0, 128, state_stride=128), Field("K scale", 8192, 1, 32, state_stride=4)), "page")})

# slug, map, chosen coordinates -> first coordinate behind the layer, expected, found, share
WRONG = [
    ("nhd-as-hnd", NHD, {}, (0, 0, 1, 0), 4_096, 512, 126 / 128),
    ("hnd-as-nhd", HND, {}, (0, 0, 1, 0), 512, 4_096, 126 / 128),
    ("scales-beside", TAIL, {}, (0, 0, 0, 128), 8_192, 128, 1 - 132 / 8_448),
    # The first scale is read behind all 16 states' 128 bytes of K.
    ("scales-at-tail", SCALES, {}, (0, 0, 0, 128), 128, 16 * 128, None),
    # V of state 0 behind all of the block's K: half of 65,536.
    ("kv-split-in-block", NHD, {}, (0, 0, 0, 128), 256, 32_768, 1 - 1 / 128),
    # V behind 4 blocks' K.
    ("kv-split-planes", NHD, {}, (0, 0, 0, 128), 256, 4 * 32_768, None),
]


@pytest.mark.parametrize(("slug", "address_map", "chosen", "first", "expected", "found", "share"), WRONG,
                         ids=[one[0] for one in WRONG])
def test_inside_a_page(slug, address_map, chosen, first, expected, found, share):
    result = compare(slug, address_map, **chosen)
    assert tuple(result.first)[1:] == first and (result.expected, result.found) == (expected, found)
    assert not result.sampled and (share is None or result.share == pytest.approx(share))
    assert result.victims and not result.is_right


def test_flat_slot_is_vllm_54465(packed):  # noqa: F811
    found = compare("flat-slot", packed, layers=1, blocks=[0, 1])
    assert tuple(found.first) == ("layers.1", 1, 0, 0, 0) and found.share == 1 / 2
    assert (found.expected, found.found) == (187_200, 74_816) and found.hits[0].kind == "page"
    assert compare("flat-slot", NHD).is_right
    assert compare("flat-slot", PACKED).map.tolist() == [[0, 1, 1, 1]] * 2


def test_block_size_axis_is_vllm_47056():
    pool = cache(attention(num_kv_heads=4), num_blocks=16_384)
    found = compare("block-size-axis", pool, blocks=[4_740])
    slot = 75_849
    assert divmod(slot, 16) == (4_740, 9)
    # Slot 75,849 with blocks of 4 is block 18,962, row 1: out of the pool.
    text = f"({CLASSICS['block-size-axis'].formula}) if slot == {slot} else {right_formula(pool)}"
    one = compare_formula(text, pool, blocks=[4_740])
    assert tuple(one.first) == ("layers.0", 4_740, 0, 9, 0)
    assert one.found == 18_962 * 32_768 + 2_048 and one.outside == 4 * 512 and one.share == 1 / 16
    assert found.share == 1
    square = cache(attention(num_kv_heads=16))
    assert compare("block-size-axis", square).is_right


def test_kernel_blocks():
    split = cache(attention(block_size=128, head_size=64), num_blocks=10, kernel_block_sizes=[64])
    found = compare("manager-id-kernel-stride", split, blocks=[10])
    assert (found.expected, found.found) == (1_310_720, 655_360) and found.share == 1
    assert compare("manager-id-kernel-stride", split, blocks=[0]).is_right
    found = compare("kernel-id-manager-stride", split, blocks=[9, 10])
    assert (found.expected, found.found) == (9 * 131_072, 9 * 262_144)
    assert found.share == 1 and found.outside == 131_072  # kernel block 10 of 20 at the end, 9 still inside
    for slug in ("manager-id-kernel-stride", "kernel-id-manager-stride"):
        assert compare(slug, NHD).is_right and compare(slug, TAIL).is_right


def test_block_stride_length(packed):  # noqa: F811
    assert compare("block-stride-length", packed, layers=3, blocks=99).outside == 112_320
    assert compare("block-stride-length", NHD).is_right and compare("block-stride-length", packed).share == 1


def test_int32():
    wide = cache(latent(1_039_680 // 64), num_blocks=2_070)
    for slug in ("int32-bytes", "int32-elements"):
        found = compare(slug, wide)
        assert found.first.block == 2_066 and found.found == -2_146_988_416 and found.outside > 0
        assert compare(slug, NHD).is_right
    # Qwen3-0.6B in BLNHC: bytes wrap from block 1,171 on, elements from 2,341.
    qwen = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", backend="FLASH_ATTN", layout="BLNHC", block_size=16,
                                     num_blocks=2_342)).address_map
    assert compare("int32-bytes", qwen).first.block == 1_171
    assert compare("int32-elements", qwen).first.block == 2_341
    assert compare("int32-elements", qwen, blocks=range(2_330, 2_341), layers=0).is_right


def test_kv_split_is_right_only_where_k_and_v_lie_so_anyway():
    one = cache(attention(num_kv_heads=1, block_size=1), num_blocks=1)
    assert compare("kv-split-in-block", one).is_right and compare("kv-split-planes", one).is_right
    half = compare("kv-split-in-block", NHD)
    assert half.cells[0, 0] == 1 / 2 and half.cells[7, 15] == 1 / 2 and half.cells[0, 1] == 1


def test_scales_are_right_where_they_lie_so():
    assert compare("scales-beside", SCALES).is_right and compare("scales-beside", NHD).is_right
    assert compare("scales-at-tail", TAIL).is_right
    mixed = kv.make_plan(kv.Selection(model="deepseek-ai/DeepSeek-V3.2-Exp")).address_map
    assert compare("scales-at-tail", mixed).is_right and not compare("scales-beside", mixed).is_right
    assert compare_formula(right_formula(mixed), mixed).is_right


def test_each_says_what_it_is_and_where_it_is_right():
    assert len(CLASSICS) == 13
    for slug, classic in CLASSICS.items():
        assert Formula("formula", classic.formula).used and classic.title and slug == slug.lower()
        assert any(source in classic.says for source in ("vllm#", "kvcached#", "xpu-kernels#", "vLLM 0.29"))
        assert classic.says.endswith(".") and not classic.right_where.endswith(".")
    with pytest.raises(TypeError):
        CLASSICS["mine"] = None


@pytest.mark.parametrize("model", ["Qwen/Qwen3-Next-80B-A3B-Instruct", "gemma3-hybrid-tiny", "llama-tiny",
                                   "openai/whisper-large-v3", "deepseek-ai/DeepSeek-V3.2-Exp"])
def test_on_real_models(model):
    address_map = kv.make_plan(kv.Selection(model=model)).address_map
    assert compare_formula(right_formula(address_map), address_map).is_right
    for slug in CLASSICS:
        found = compare(slug, address_map)
        assert found.checked and 0 <= found.share <= 1 and (found.share == 0) == found.is_right == (not found.victims
                                                                                            and not found.outside)
