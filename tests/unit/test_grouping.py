"""Which layers share a block table: each rule by a model small enough to check by hand."""

from dataclasses import dataclass

import pytest

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.grouping import get_kv_cache_groups, project_kv_cache_groups, unify_kv_cache_spec_page_size
from kvlayout.packing import least_padding_size
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

HEADS = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
PAGE = 16 * 8 * 128 * 2 * 2
LATENT = {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"}
FULL = FullAttentionSpec(**HEADS)
WINDOW = SlidingWindowSpec(**HEADS, sliding_window=128)
MLA = MLAAttentionSpec(**LATENT)
INDEXER = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype="uint8", cache_role="indexer")


def named(*pattern, repeats=1):
    """Layers "0", "1", ... in the order of the pattern."""
    return {str(index): spec for index, spec in enumerate(pattern * repeats)}


def members(groups):
    return [" ".join(group.layer_names) for group in groups]


def test_a_plain_model_is_one_group_in_every_layout():
    for layout in ("LBHNC", "LHBNC", "BHLNC"):
        group, = get_kv_cache_groups(named(FULL, repeats=3), layout)
        assert group == KVCacheGroupSpec(["0", "1", "2"], FULL)


def test_no_layers_no_groups():
    assert get_kv_cache_groups({}, "LBNHC") == []
    assert get_kv_cache_groups({}, "LBNHC", disable_hybrid_kv_cache_manager=True) == []


def test_an_indexer_beside_mla_is_one_group_of_two_page_sizes():
    group, = get_kv_cache_groups(named(MLA, INDEXER, repeats=2), "LBNHC")
    assert isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs)
    assert group.page_sizes_bytes == [73728, 8448] * 2


def test_five_windows_a_full_layer_are_dealt_out_round_robin():
    groups = get_kv_cache_groups(named(*[WINDOW] * 5, FULL, repeats=2), "LBNHC")
    assert members(groups) == ["0 6", "1 7", "2 8", "3 9", "4 10", "5 11"]
    assert [group.kv_cache_spec for group in groups] == [WINDOW] * 5 + [FULL]


@pytest.mark.parametrize(("windows", "fulls", "sizes"), [
    (12, 13, [12, 13]),  # a draft's one more layer: padded up
    (2, 3, [2, 2, 1]),   # 3 is 1.5 times 2, so the smaller count is the group size
    (4, 5, [4, 5]),
    (2, 5, [2, 2, 2, 1]),
])
def test_somewhat_uneven_kinds_are_padded_up_and_others_split_down(windows, fulls, sizes):
    groups = get_kv_cache_groups(named(*[WINDOW] * windows, *[FULL] * fulls), "LBHNC")
    assert [len(group.layer_names) for group in groups] == sizes


def test_smaller_pages_get_larger_blocks_and_odd_ones_padding():
    half = SlidingWindowSpec(**HEADS | {"num_kv_heads": 4}, sliding_window=128)
    odd = CrossAttentionSpec(**HEADS | {"num_kv_heads": 3})
    state = MambaSpec(16, ((1024,),), ("float32",))
    specs = [group.kv_cache_spec for group in get_kv_cache_groups(named(FULL, half, odd, state), "LBNHC")]
    assert [spec.page_size_bytes for spec in specs] == [PAGE] * 4
    assert [spec.block_size for spec in specs] == [16, 32, 16, 16]
    assert [spec.page_size_padded for spec in specs] == [None, None, PAGE, PAGE]


def test_an_mla_page_that_divides_gets_larger_blocks_too():
    big = CrossAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, dtype="bfloat16")
    unified = unify_kv_cache_spec_page_size({"mla": MLA, "cross": big})
    assert unified == {"mla": MLAAttentionSpec(**LATENT | {"block_size": 128}), "cross": big}


def test_mla_beside_windows_is_allocated_in_full_where_pages_cant_be_equal():
    window = SlidingWindowSpec(**HEADS | {"block_size": 64}, sliding_window=128)
    group, = get_kv_cache_groups(named(MLA, window), "LBHNC")
    assert group.kv_cache_spec.kv_cache_specs["1"] == FullAttentionSpec(
        **HEADS | {"block_size": 64}, sliding_window=128)
    chunk = ChunkedLocalAttentionSpec(**HEADS | {"block_size": 64}, attention_chunk_size=128)
    with pytest.raises(LayoutError, match="an MLA page can't be padded.*BLHNC"):
        get_kv_cache_groups(named(MLA, window, chunk), "LBHNC")
    assert members(get_kv_cache_groups(named(MLA, window, chunk), "BLHNC")) == ["0", "1", "2"]


def test_a_page_that_is_padded_already_cant_be_brought_to_another_size():
    padded = FullAttentionSpec(**HEADS | {"num_kv_heads": 2}, page_size_padded=PAGE // 2)
    with pytest.raises(LayoutError, match=r"0=32768: bytes of a padded page can't be brought to 65,536 bytes"):
        unify_kv_cache_spec_page_size(named(padded, FULL))


def test_packed_patterns_stay_whole_and_set_the_repeats():
    # 2 x (MLA + indexer) is the pattern; 5 windows make 3 groups of at most 2.
    window = SlidingWindowMLASpec(**LATENT, sliding_window=128)
    groups = get_kv_cache_groups(named(MLA, INDEXER, MLA, INDEXER, *[window] * 5), "BLHNC")
    assert members(groups) == ["0 1 2 3", "4 7", "5 8", "6"]


def test_beside_a_pattern_windows_are_split_by_its_repeats_only():
    small, window = MLAAttentionSpec(**LATENT | {"head_size": 64}), SlidingWindowMLASpec(**LATENT, sliding_window=128)
    groups = get_kv_cache_groups(named(small, INDEXER, small, INDEXER, window, window), "BLHNC")
    assert members(groups) == ["0 1 2 3", "4 5"]


def test_beside_a_pattern_state_is_split_at_least_by_its_repeats():
    state = MambaSpec(64, ((8,),), ("float32",))
    groups = get_kv_cache_groups(named(MLA, INDEXER, *[state] * 4), "BLHNC")
    assert members(groups) == ["0 1", "2", "3", "4", "5"]


def test_uneven_buckets_have_no_say_in_the_repeats_and_stay_whole():
    window = SlidingWindowMLASpec(**LATENT, sliding_window=128)
    uneven = [FULL] * 4 + [FullAttentionSpec(**HEADS | {"head_size": 64})]
    groups = get_kv_cache_groups(named(MLA, INDEXER, MLA, INDEXER, *[window] * 3, *uneven), "BLHNC")
    assert members(groups) == ["0 1 2 3", "4 5 6", "7 8 9 10 11"]


@pytest.mark.parametrize(("counts", "floor", "size"), [
    ([10, 20], 10, 10), ([10, 20], 11, 11), ([3, 4], 3, 4), ([7], 1, 7), ([6, 9], 3, 3), ([5, 5], 2, 5),
])
def test_group_sizes_waste_least_and_prefer_the_larger(counts, floor, size):
    assert least_padding_size(counts, floor) == size


def test_packed_state_fits_into_the_block_that_attention_needs():
    state = MambaSpec(16, ((PAGE // 2,),), ("uint8",))
    groups = get_kv_cache_groups(named(FULL, *[state] * 5), "BLNHC")
    assert members(groups) == ["0", "1 4", "2 5", "3"]
    assert max(sum(group.page_sizes_bytes) for group in groups) == PAGE


def test_windows_and_rings_count_as_state_from_0_30_on():
    small = SlidingWindowSpec(**HEADS | {"num_kv_heads": 4}, sliding_window=128)
    layers = named(FULL, *[small] * 4)
    assert members(get_kv_cache_groups(layers, "BLHNC", vllm_version="0.29.0")) == ["0", "1 2 3 4"]
    assert members(get_kv_cache_groups(layers, "BLHNC", vllm_version="0.30.0")) == ["0", "1 3", "2 4"]
    ring = CircularBufferSpec(**HEADS | {"num_kv_heads": 4})
    assert members(get_kv_cache_groups(named(FULL, *[ring] * 4), "BLHNC")) == ["0", "1 3", "2 4"]


def test_an_uneven_state_bucket_that_must_be_split_is_refused_as_vllm_fails():
    small = SlidingWindowSpec(**HEADS | {"num_kv_heads": 4}, sliding_window=128)
    with pytest.raises(LayoutError, match=r"\{65536: 2, 32768: 1\}: .*can't be dealt out to 3 groups"):
        get_kv_cache_groups(named(FullAttentionSpec(**HEADS | {"head_size": 64}), WINDOW, WINDOW, small), "BLHNC")


def test_more_groups_than_repeats_are_refused_as_vllm_fails():
    big, small = CircularBufferSpec(**HEADS), CircularBufferSpec(**HEADS | {"head_size": 64})
    tiny = FullAttentionSpec(**HEADS | {"num_kv_heads": 1})
    with pytest.raises(LayoutError, match="can't be dealt out to 4 groups"):
        get_kv_cache_groups(named(big, small, big, small, tiny), "BLHNC")


def test_hidden_states_have_groups_of_their_own():
    hidden = HiddenStateCacheSpec(block_size=16, num_kv_heads=5, head_size=2048, dtype="bfloat16")
    layers = named(FULL, WINDOW, hidden, hidden)
    groups = get_kv_cache_groups(layers, "LBNHC")
    assert members(groups) == ["0", "1", "2", "3"]
    # 20,480 bytes a token: three fit into a page of 65,536, but only two divide the block of 16 tokens.
    assert groups[2].kv_cache_spec.block_size == 2
    assert groups[2].kv_cache_spec.page_size_bytes == PAGE
    packed = get_kv_cache_groups(layers | {"4": FullAttentionSpec(**HEADS | {"head_size": 64})}, "BLNHC")
    assert members(packed) == ["0 4", "1", "2", "3"]
    assert packed[-1].kv_cache_spec == hidden


def test_a_token_of_hidden_states_larger_than_a_page_makes_all_blocks_larger():
    hidden = HiddenStateCacheSpec(block_size=16, num_kv_heads=10, head_size=4096, dtype="bfloat16")
    groups = get_kv_cache_groups(named(FULL, WINDOW, hidden), "LBNHC")
    assert [group.kv_cache_spec.block_size for group in groups] == [32, 32, 1]
    assert [group.page_sizes_bytes for group in groups] == [[2 * PAGE]] * 3
    padded = [FullAttentionSpec(**HEADS, page_size_padded=PAGE + 512), MambaSpec(16, ((PAGE + 512,),), ("uint8",))]
    groups = get_kv_cache_groups(named(*padded, hidden), "LBNHC")
    assert [group.page_sizes_bytes for group in groups] == [[2 * PAGE + 1024], [PAGE + 512], [2 * PAGE + 1024]]
    with pytest.raises(LayoutError, match="page_size_padded=65536: is below the page's own 81,920 bytes"):
        get_kv_cache_groups(named(FULL, WINDOW, hidden), "LBNHC", vllm_version="0.29.0")


def test_without_the_hybrid_manager_local_attention_is_allocated_in_full():
    chunk = ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=512)
    groups = get_kv_cache_groups(named(FULL, WINDOW), "LBNHC", disable_hybrid_kv_cache_manager=True)
    assert groups == [KVCacheGroupSpec(["0", "1"], FullAttentionSpec(**HEADS, sliding_window=128))]
    groups = get_kv_cache_groups(named(FULL, chunk), "LBNHC", disable_hybrid_kv_cache_manager=True)
    assert groups == [KVCacheGroupSpec(["0", "1"], FullAttentionSpec(**HEADS, attention_chunk_size=512))]
    only_windows = named(WINDOW, SlidingWindowSpec(**HEADS, sliding_window=64))
    with pytest.raises(LayoutError, match="can't be allocated as one type of cache"):
        get_kv_cache_groups(only_windows, "LBNHC", disable_hybrid_kv_cache_manager=True)
    assert len(get_kv_cache_groups(only_windows, "LBNHC")) == 2


def test_without_the_hybrid_manager_layers_that_dcp_replicates_are_kept_apart():
    replicated = SlidingWindowSpec(**HEADS, sliding_window=128, dcp_sharded=False)
    layers = named(FULL, WINDOW, replicated, replicated)
    groups = get_kv_cache_groups(layers, "LBNHC", disable_hybrid_kv_cache_manager=True)
    assert members(groups) == ["0 1", "2 3"]
    assert groups[1].kv_cache_spec == replicated


def test_promotion_takes_the_block_size_of_full_attention_and_grows_padding():
    window = SlidingWindowSpec(**HEADS, sliding_window=128, page_size_padded=PAGE + 512, extra_retained_tokens=1)
    layers = named(FullAttentionSpec(**HEADS | {"block_size": 64}), window)
    group, = get_kv_cache_groups(layers, "LBHNC", disable_hybrid_kv_cache_manager=True)
    assert group.page_sizes_bytes == [4 * PAGE, 4 * PAGE]
    assert group.kv_cache_spec.kv_cache_specs["1"].page_size_padded == 4 * PAGE


def test_windows_over_latents_could_be_allocated_in_full_up_to_0_30():
    layers = named(MLA, SlidingWindowMLASpec(**LATENT, sliding_window=128))
    group, = get_kv_cache_groups(layers, "LBNHC", disable_hybrid_kv_cache_manager=True, vllm_version="0.30.0")
    assert group.kv_cache_spec == MLA
    with pytest.raises(LayoutError, match="vLLM 0.31.0 fails.*no bounded_replay"):
        get_kv_cache_groups(layers, "LBNHC", disable_hybrid_kv_cache_manager=True, vllm_version="0.31.0")


def test_the_special_grouping_of_0_30_and_0_31_is_refused_and_not_guessed():
    layers = named(MLA, MLAAttentionSpec(**LATENT, tokens_per_state=4), MambaSpec(64, ((64,),), ("float32",)))
    for version in ("0.30.0", "0.31.0"):
        with pytest.raises(LayoutError, match="isn't reproduced here.*0.32.0 and newer"):
            get_kv_cache_groups(layers, "BLHNC", vllm_version=version)
    assert members(get_kv_cache_groups(layers, "BLHNC", vllm_version="0.32.0")) == ["0 1", "2"]


def test_projection_keeps_groups_that_a_rank_has_no_layer_of():
    groups = get_kv_cache_groups(named(MLA, INDEXER, SlidingWindowMLASpec(**LATENT, sliding_window=128)), "BLHNC")
    first, second = project_kv_cache_groups(groups, {"2"})
    assert (first.layer_names, second) == ((), groups[1])
    assert first.kv_cache_spec == groups[0].kv_cache_spec
    first, second = project_kv_cache_groups(groups, ["1"])
    assert first == KVCacheGroupSpec(["1"], UniformTypeKVCacheSpecs(64, {"1": INDEXER}))
    assert second == KVCacheGroupSpec([], groups[1].kv_cache_spec)
    assert project_kv_cache_groups(groups, ["0", "1", "2"]) == groups


def test_an_empty_group_is_placed_as_vllm_places_it():
    groups = project_kv_cache_groups(get_kv_cache_groups(named(FULL, WINDOW), "LBHNC"), ["0"])
    config = get_kv_cache_config_from_groups(groups, 10 * PAGE, "LBHNC")
    assert [tensor.layers for tensor in config.kv_cache_tensors] == [("0",)]
    # The specs of a uniform-type group are placed even where none of its layers is on the rank.
    window = SlidingWindowMLASpec(**LATENT, sliding_window=128)
    groups = project_kv_cache_groups(get_kv_cache_groups(named(MLA, INDEXER, window), "BLHNC"), ["2"])
    config = get_kv_cache_config_from_groups(groups, 10 * 73728, "BLHNC")
    assert [tensor.layers for tensor in config.kv_cache_tensors] == [("0",), ("1",), ("2",)]
    assert (config.num_blocks, config.size_bytes) == (10, 10 * 73728)


def test_objects_of_vllm_are_taken_as_they_are():
    theirs = dataclass(type("FullAttentionSpec", (), {
        "__annotations__": {"block_size": int, "num_kv_heads": int, "head_size": int, "dtype": str, "extra": int},
        "extra": 5}))
    groups = get_kv_cache_groups({"0": theirs(16, 8, 128, "torch.bfloat16")}, "LBNHC")
    assert groups == [KVCacheGroupSpec(["0"], FULL)]


@pytest.mark.parametrize(("layers", "named_in_error"), [
    ([("0", FULL)], "must map layer names to specs"),
    ({"0": "full"}, r"kv_cache_spec\['0'\]='full': is not a KV cache spec"),
    ({"0": UniformTypeKVCacheSpecs(16, {"a": FULL})}, "isn't the cache of one layer"),
    ({"0": FULL, "e": EncoderOnlyAttentionSpec(**HEADS)}, "EncoderOnlyAttentionSpec.*leave out layers"),
    ({"0": WINDOW, "1": FullAttentionSpec(**HEADS, tokens_per_state=32)}, "no block can be planned for"),
    ({"a": FullAttentionSpec(**HEADS, sliding_window=8), "b": FullAttentionSpec(**HEADS, sliding_window=9)},
     "vLLM refuses such a model"),
])
def test_layers_that_cant_be_grouped(layers, named_in_error):
    with pytest.raises(LayoutError, match=named_in_error):
        get_kv_cache_groups(layers, "LBNHC")


def test_unknown_layout_and_release():
    with pytest.raises(LayoutError, match="XBHNC"):
        get_kv_cache_groups(named(FULL), "XBHNC")
    with pytest.raises(LayoutError, match="0.28.0.*not a release"):
        get_kv_cache_groups(named(FULL), "LBNHC", vllm_version="0.28.0")
