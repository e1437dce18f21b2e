"""Do ranks agree, and which of their strides depend on the block count, so that peers must exchange it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvlayout.address import AddressMap
from kvlayout.clinic.wording import layers_text
from kvlayout.errors import LayoutError, check_type
from kvlayout.finding import Finding
from kvlayout.layout import B

_STRIDES = ("layer_stride", "block_stride", "head_stride", "state_stride", "byte_stride")


def count_dependent(address_map: AddressMap) -> tuple[str, ...]:
    """Return which strides (and "offset") grow with the block count: axes of several steps outside B."""
    check_type("address_map", address_map, AddressMap)
    order = address_map.layout.stride_order
    outside = order[:order.index(B)]
    found = [_STRIDES[axis] for axis in sorted(outside)
             if any(region.geometry.shape[axis] > 1 for region in address_map.regions)]
    # A group's second tensor begins behind all blocks of its first, where layers are outermost.
    if outside and any(region.tensor.offset for region in address_map.regions):
        found.append("offset")
    return tuple(found)


def lint_counts(address_map: AddressMap) -> list[Finding]:
    """Return a note where an address can't be computed without the block count."""
    found = count_dependent(address_map)
    if not found:
        return []
    blocks = address_map.config.num_blocks
    region = address_map.regions[0]
    numbers = dict(zip(_STRIDES, region.geometry.strides))
    shown = ", ".join(f"{name} {numbers[name]:,}" if name in numbers else name for name in found)
    return [Finding("block-count-in-strides", "note", f"In {address_map.layout.name} these depend on the block "
                    f"count, {blocks:,} here: {shown}. A peer with another count has others.",
                    {"num_blocks": blocks, "names": list(found), **{n: numbers[n] for n in found if n in numbers}},
                    None, "Exchange num_blocks, or the strides themselves, before computing a peer's addresses")]


def compare_ranks(subjects: Sequence[object] | Mapping[object, object]) -> list[Finding]:
    """Return how ranks differ: block counts and layouts, then strides, then what a peer must be told.

    ``subjects``: a list of two or more, or {rank: subject}, each a Plan, an AddressMap, a KVCache or a KVCacheConfig
    that names its layout. Compared are num_blocks, the layout, kernel block sizes, and each shared layer's page and
    strides in bytes.
    """
    if isinstance(subjects, Mapping):
        ranks = list(subjects.items())
    elif isinstance(subjects, Sequence) and not isinstance(subjects, (str, bytes)):
        ranks = list(enumerate(subjects))
    else:
        raise LayoutError("subjects", subjects, "must be a list of plans, maps or configs, one a rank")
    if len(ranks) < 2:
        raise LayoutError("subjects", len(ranks), "must be at least two ranks", "Give one subject a rank")
    maps = {rank: rank_map(rank, subject) for rank, subject in ranks}
    found = _agree(maps, "rank-num-blocks", "blocks", lambda one: one.config.num_blocks,
                   "Let every rank take the smallest count")
    found += _agree(maps, "rank-layout", "layout", lambda one: one.layout.name, "Resolve one layout for all ranks")
    found += _agree(maps, "rank-kernel-blocks", "kernel block sizes", _kernel_block_sizes,
                    "Use one backend and block size on all ranks")
    found += _strides(maps)
    dependent = sorted({name for one in maps.values() for name in count_dependent(one)})
    if dependent:
        counts = {str(rank): one.config.num_blocks for rank, one in maps.items()}
        shown = ", ".join(f"rank {rank}: {count:,}" for rank, count in list(counts.items())[:8])
        found.append(Finding("block-count-in-strides", "note", f"{', '.join(dependent)} depend on a rank's block "
                             f"count ({shown}), so peers must exchange it.",
                             {"names": dependent, "num_blocks": counts}, None,
                             "Send num_blocks, or the strides, in the handshake"))
    return found


def rank_map(rank: object, subject: object) -> AddressMap:
    """Return the address map of one rank's subject."""
    found = subject if isinstance(subject, AddressMap) else getattr(subject, "address_map", None)
    if isinstance(found, AddressMap):
        return found
    try:
        return AddressMap(subject)
    except LayoutError as error:
        raise LayoutError(f"subjects[{rank!r}]", error.value, error.rule, error.cure) from None


def _agree(maps, rule, what, value, cure) -> list[Finding]:
    usual = Counter(value(one) for one in maps.values()).most_common(1)[0][0]
    off = {rank: value(one) for rank, one in maps.items() if value(one) != usual}
    if not off:
        return []
    shown = ", ".join(f"rank {rank} has {_text(found)}" for rank, found in list(off.items())[:8])
    return [Finding(rule, "error", f"{what.capitalize()} differ: {shown}; the others have {_text(usual)}.",
                    {"expected": usual, "found": {str(rank): found for rank, found in off.items()}}, None, cure)]


def _kernel_block_sizes(one: AddressMap) -> tuple[int, ...]:
    """Tokens a kernel block, one a group: the whole block where it isn't split."""
    groups = one.config.kv_cache_groups
    sizes = one.kernel_block_sizes or [None] * len(groups)
    return tuple(size or group.kv_cache_spec.block_size for size, group in zip(sizes, groups))


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _strides(maps: Mapping[object, AddressMap]) -> list[Finding]:
    """Layers that several ranks hold with other pages or strides; ranks of other stages share none."""
    (first, reference), *others = maps.items()
    found = []
    for rank, one in others:
        known = {}
        for layer in one.layers:
            if layer not in reference.layers:
                continue
            ours, theirs = reference.region(layer).geometry, one.region(layer).geometry
            if ours.shape[2:] == theirs.shape[2:] and ours.strides == theirs.strides:
                continue
            known.setdefault((ours.shape[2:], ours.strides, theirs.shape[2:], theirs.strides), []).append(layer)
        for (shape, strides, other_shape, other), layers in known.items():
            names = [name for name, a, b in zip(_STRIDES, strides, other) if a != b]
            pages = "" if shape == other_shape else f" (pages of {shape} and {other_shape}, H N C bytes)"
            found.append(Finding(
                "rank-strides", "warning", f"{layers_text(layers)} lie otherwise on rank {rank} than on rank {first}"
                f"{pages}: " + ", ".join(f"{name} {a:,} and {b:,}" for name, a, b in zip(_STRIDES, other, strides)
                                         if name in names) + " bytes.",
                {"rank": str(rank), "strides": list(other), "reference": list(strides), "names": names},
                {"layer": layers[0]}, "Address a peer's bytes with the peer's strides"))
    return found
