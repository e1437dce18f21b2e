"""Hypothesis strategies: random specs, layouts and whole configs, small enough to check every byte."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from kvlayout.address import AddressMap
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.interior import Field, Interior
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

layouts = st.sampled_from(list(KVCacheLayout))


@st.composite
def attention_specs(draw, block_size: int | None = None) -> KVCacheSpec:
    """Attention pages of a few hundred bytes: dense, repacked, padded, with shared or split states."""
    fields = {
        "block_size": block_size or draw(st.sampled_from([1, 2, 4, 8])),
        "num_kv_heads": draw(st.integers(1, 3)),
        "head_size": draw(st.integers(1, 6)),
        "dtype": draw(st.sampled_from(["int8", "bfloat16", "float32"])),
        "tokens_per_state": draw(st.sampled_from([1, 1, 1, 2, "1/2"])),
    }
    kind = draw(st.sampled_from([FullAttentionSpec, SlidingWindowSpec, MLAAttentionSpec]))
    if kind is SlidingWindowSpec:
        fields["sliding_window"] = 16
    if kind is MLAAttentionSpec:
        fields["num_kv_heads"] = 1
    elif draw(st.booleans()):
        fields["head_size_v"] = draw(st.integers(1, 6))
    if draw(st.integers(0, 3)) == 0:
        fields["state_content_bytes"] = 4 * draw(st.integers(1, 5))
        fields["num_head_slots"] = draw(st.integers(1, 4))
    spec = kind(**fields)
    assume(spec.num_states > 0)
    if draw(st.integers(0, 2)) == 0:
        spec = kind(**fields, page_size_padded=spec.page_size_bytes + 4 * draw(st.integers(0, 5)))
    return spec


@st.composite
def mamba_specs(draw, block_size: int = 8) -> MambaSpec:
    """State pages: one or two state tensors, some padded."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=2))
    spec = MambaSpec(block_size, shapes, ["bfloat16"] * len(shapes))
    if draw(st.booleans()):
        padded = spec.page_size_bytes + draw(st.integers(0, 9))
        spec = MambaSpec(block_size, shapes, ["bfloat16"] * len(shapes), padded)
    return spec


@st.composite
def configs(draw) -> KVCacheConfig:
    """Configs as vLLM places them: one to three groups of one to four layers, overlaying from byte 0."""
    layout = draw(layouts)
    groups, count = [], 0
    for _ in range(draw(st.integers(1, 3))):
        names = [f"model.layers.{count + i}.attn" for i in range(draw(st.integers(1, 4)))]
        count += len(names)
        first = draw(st.one_of(attention_specs(), mamba_specs()))
        if draw(st.booleans()):
            other = draw(attention_specs(block_size=first.block_size))
            spec = UniformTypeKVCacheSpecs(first.block_size, {
                name: draw(st.sampled_from([first, other])) for name in names})
        else:
            spec = first
        groups.append(KVCacheGroupSpec(names, spec))
    try:
        return get_kv_cache_config_from_groups(groups, 0, layout, num_gpu_blocks_override=draw(st.integers(1, 5)))
    except LayoutError:
        assume(False)  # this layout can't express these pages; test_placement covers the refusals
        raise


@st.composite
def maps(draw) -> AddressMap:
    """Address maps of :func:`configs`, with kernel blocks where they can be split, and with odd interiors."""
    config = draw(configs())
    sizes = []
    for group in config.kv_cache_groups:
        divisors = [n for n in (1, 2, 4, 8) if group.kv_cache_spec.block_size % n == 0]
        sizes.append(draw(st.sampled_from(divisors)))
    try:
        return AddressMap(config, kernel_block_sizes=sizes, interiors=draw(interiors(config, sizes)))
    except LayoutError:
        return AddressMap(config, interiors=draw(interiors(config, None)))


@st.composite
def interiors(draw, config: KVCacheConfig, sizes: list[int] | None) -> dict[str, Interior]:
    """For some layers: K transposed inside its cell, or a scale a state at the page's tail."""
    found = {}
    compact = KVCacheLayout[config.kv_cache_layout].is_block_compact
    for index, group in enumerate(config.kv_cache_groups):
        by_spec = {}
        for name, spec in group.layer_specs.items():
            kernel_spec = spec if sizes is None else spec.copy_with_new_block_size(sizes[index])
            if kernel_spec.num_states == 0:
                continue
            if spec not in by_spec:
                by_spec[spec] = draw(st.sampled_from(["default", "cell", "page" if compact else "cell"]))
            if by_spec[spec] == "cell":
                found[name] = transposed_cell(kernel_spec)
            elif by_spec[spec] == "page" and kernel_spec.state_content_size_bytes > 1:
                found[name] = scales_at_tail(kernel_spec)
    return found


def transposed_cell(spec: KVCacheSpec) -> Interior:
    """Byte e of all states lies together: the cell holds its states as columns."""
    content, states = spec.state_content_size_bytes, spec.num_states
    return Interior((Field("packed", 0, content, state_stride=1, element_stride=states),), "cell")


def scales_at_tail(spec: KVCacheSpec) -> Interior:
    """All states' data first, slot after slot; then one scale byte a state."""
    content, states, heads = spec.state_content_size_bytes, spec.num_states, spec.num_heads
    data = content - 1
    return Interior((
        Field("data", 0, data, state_stride=data, head_stride=data * states),
        Field("scale", data * states * heads, 1, state_stride=1, head_stride=states),
    ), "page")
