"""What holds for the groups of every model, shown on random ones."""

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.grouping import get_kv_cache_groups, project_kv_cache_groups
from kvlayout.layout import KVCacheLayout
from kvlayout.merging import is_uniform_type, merge_specs
from kvlayout.placement import get_kv_cache_bytes_per_block, get_kv_cache_config_from_groups
from kvlayout.spec import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from kvlayout.versions import VLLM_VERSIONS

layouts = st.sampled_from(list(KVCacheLayout))
versions = st.sampled_from(VLLM_VERSIONS)


@st.composite
def specs(draw, kinds: tuple[type[KVCacheSpec], ...]) -> KVCacheSpec:
    """A spec of one of these kinds, out of few sizes, so that pages often are equal or divide each other."""
    kind = draw(st.sampled_from(kinds))
    if kind is MambaSpec:
        return MambaSpec(16, ((draw(st.sampled_from([512, 1000, 4096])),),), ("float32",))
    values = {"block_size": draw(st.sampled_from([16, 16, 32])), "num_kv_heads": draw(st.sampled_from([1, 2, 3, 4])),
              "head_size": 16, "dtype": "bfloat16"}
    if issubclass(kind, (MLAAttentionSpec, SlidingWindowMLASpec)):
        values |= {"num_kv_heads": 1, "head_size": draw(st.sampled_from([32, 64, 72]))}
    if issubclass(kind, SlidingWindowSpec):
        values["sliding_window"] = draw(st.sampled_from([64, 128]))
    if kind is ChunkedLocalAttentionSpec:
        values["attention_chunk_size"] = draw(st.sampled_from([64, 128]))
    return kind(**values)


@st.composite
def models(draw, *kinds: type[KVCacheSpec], min_size: int = 0) -> dict[str, KVCacheSpec]:
    """Layers "0", "1", ... of one to four specs."""
    few = draw(st.lists(specs(kinds), min_size=1, max_size=4))
    chosen = draw(st.lists(st.sampled_from(few), min_size=min_size, max_size=16))
    return {str(index): spec for index, spec in enumerate(chosen)}


ALL_KINDS = (FullAttentionSpec, SlidingWindowSpec, MambaSpec, MLAAttentionSpec, SlidingWindowMLASpec,
             ChunkedLocalAttentionSpec, CrossAttentionSpec, HiddenStateCacheSpec)
# Kinds whose groups don't depend on which layer comes first, and which every page size suits.
PLAIN_KINDS = (FullAttentionSpec, MambaSpec)


def group(layers, layout, **options) -> list[KVCacheGroupSpec]:
    """Group the layers, or discard the example where vLLM can't."""
    try:
        return get_kv_cache_groups(layers, layout, **options)
    except LayoutError:
        assume(False)


@given(models(*ALL_KINDS), layouts, versions, st.booleans())
def test_every_layer_is_in_exactly_one_group_and_the_input_is_untouched(layers, layout, version, disabled):
    before = dict(layers)
    try:
        groups = get_kv_cache_groups(layers, layout, vllm_version=version, disable_hybrid_kv_cache_manager=disabled)
        assert Counter(name for one in groups for name in one.layer_names) == Counter(list(layers))
        assert all(one.layer_names for one in groups)
    except LayoutError:
        assert len(set(layers.values())) > 1, "equal layers are always one group"
    assert layers == before
    assert list(layers) == list(before)


@given(models(*ALL_KINDS), layouts, versions)
def test_groups_only_hold_layers_that_belong_together(layers, layout, version):
    for one in group(layers, layout, vllm_version=version):
        spec = one.kv_cache_spec
        if isinstance(spec, UniformTypeKVCacheSpecs):
            assert list(spec.kv_cache_specs) == list(one.layer_names)
            assert is_uniform_type(list(spec.kv_cache_specs.values()))
        else:
            assert type(spec) in {type(layers[name]) for name in one.layer_names}


@given(models(*ALL_KINDS), layouts, versions)
def test_several_groups_without_packing_have_one_page_size(layers, layout, version):
    groups = group(layers, layout, vllm_version=version)
    assume(len(groups) > 1)
    kept = {spec.page_size_bytes for spec in layers.values() if not isinstance(spec, HiddenStateCacheSpec)}
    if layout.is_block_outermost and len(kept) > 1:
        assert all(isinstance(one.kv_cache_spec, (UniformTypeKVCacheSpecs, HiddenStateCacheSpec)) for one in groups)
    else:
        attention = [one for one in groups if not isinstance(one.kv_cache_spec, MambaSpec)]
        assert len({size for one in attention for size in one.page_sizes_bytes}) <= 1


@given(models(FullAttentionSpec, SlidingWindowSpec, MambaSpec, min_size=1), st.sampled_from(["LBHNC", "LBNHC"]),
       versions)
def test_groups_of_unpacked_layers_are_about_equally_long(layers, layout, version):
    groups = group(layers, layout, vllm_version=version)
    assume(len(groups) > 1)
    counts = Counter()
    for one in groups:
        counts[one.kv_cache_spec] += len(one.layer_names)
    size = max(counts.values()) if max(counts.values()) < 1.5 * min(counts.values()) else min(counts.values())
    for spec, count in counts.items():
        lengths = [len(one.layer_names) for one in groups if one.kv_cache_spec == spec]
        assert len(lengths) == -(-count // size)
        assert max(lengths) - min(lengths) <= 1


@given(models(*PLAIN_KINDS, min_size=1), st.sampled_from(["BLHNC", "BLNHC", "BHLNC"]))
def test_packed_state_never_makes_the_block_larger(layers, layout):
    groups = group(layers, layout)
    assume(len({spec.page_size_bytes for spec in layers.values()}) > 1 and len(groups) > 1)
    states = [one for one in groups if isinstance(layers[one.layer_names[0]], MambaSpec)]
    others = [sum(one.page_sizes_bytes) for one in groups if one not in states]
    needed = max([one.page_sizes_bytes[0] for one in states] + others)
    assert get_kv_cache_bytes_per_block(groups, KVCacheLayout[layout]) == needed


@given(models(*PLAIN_KINDS, min_size=1), layouts, st.randoms(use_true_random=False))
def test_the_order_of_layers_changes_names_but_not_the_cost(layers, layout, random):
    shuffled = list(layers.items())
    random.shuffle(shuffled)
    first, second = get_kv_cache_groups(layers, layout), get_kv_cache_groups(dict(shuffled), layout)
    assert sorted(len(one.layer_names) for one in first) == sorted(len(one.layer_names) for one in second)
    assert get_kv_cache_bytes_per_block(first, layout) == get_kv_cache_bytes_per_block(second, layout)


@given(models(FullAttentionSpec, SlidingWindowSpec, MambaSpec, CrossAttentionSpec, min_size=1),
       st.sampled_from(["LBHNC", "LBNHC", "BLHNC", "BLNHC"]), st.integers(0, 5))
def test_block_compact_layouts_can_place_what_they_group(layers, layout, num_blocks):
    groups = group(layers, layout)
    config = get_kv_cache_config_from_groups(groups, 0, layout, num_gpu_blocks_override=num_blocks)
    assert Counter(name for tensor in config.kv_cache_tensors for name in tensor.layers) == Counter(list(layers))


@given(models(*ALL_KINDS), layouts, st.data())
def test_ranks_together_have_every_layer_once_in_the_same_groups(layers, layout, data):
    groups = group(layers, layout)
    cut = data.draw(st.integers(0, len(layers)))
    names = list(layers)
    first, second = project_kv_cache_groups(groups, names[:cut]), project_kv_cache_groups(groups, names[cut:])
    assert len(first) == len(second) == len(groups)
    for one, low, high in zip(groups, first, second):
        assert sorted(low.layer_names + high.layer_names) == sorted(one.layer_names)
        for part in (low, high):
            assert list(part.layer_names) == [name for name in one.layer_names if name in part.layer_names]
            assert part.page_sizes_bytes == [one.layer_specs[name].page_size_bytes for name in part.layer_names]


@given(specs(ALL_KINDS), st.integers(1, 3))
def test_merging_is_idempotent(spec, count):
    merged = merge_specs([spec] * count)
    assert merged == merge_specs([merged, merged])
    assert merged.page_size_bytes == spec.page_size_bytes
