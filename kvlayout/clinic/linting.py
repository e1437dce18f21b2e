"""lint: every check of the clinic on a plan, a config, an address map, a cache or live tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlayout.address import AddressMap
from kvlayout.capture.fitting import likeliest_first
from kvlayout.capture.objects import as_config
from kvlayout.clinic.alignment import lint_alignment
from kvlayout.clinic.blocks import lint_splits
from kvlayout.clinic.bounds import lint_bounds
from kvlayout.clinic.broken import lint_broken
from kvlayout.clinic.claimed import lint_claim
from kvlayout.clinic.contained import lint_sharing
from kvlayout.clinic.limits import lint_limits, offset_limits
from kvlayout.clinic.ranks import lint_counts
from kvlayout.clinic.shares import lint_backends, lint_halves, lint_shares
from kvlayout.clinic.tensors import lint_tensors, lint_views
from kvlayout.config import KVCacheConfig
from kvlayout.errors import LayoutError
from kvlayout.finding import SEVERITIES, Finding
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.plan import Plan


def lint(
    subject: object,
    layout: KVCacheLayout | PhysicalLayout | str | None = None,
    *,
    kernel_block_sizes: Sequence[int | None] | None = None,
) -> list[Finding]:
    """Return every finding on ``subject``, errors first, then warnings, then notes.

    ``subject``: a Plan; a KVCacheConfig (ours or vLLM's); an AddressMap; a KVCache; or {layer: tensor} of live
    tensors. ``layout`` and ``kernel_block_sizes`` (tokens, one a group) are for a config that doesn't say, and must
    be left out or equal elsewhere. A config that contradicts itself gives findings; LayoutError is for a subject that
    is none of these.
    """
    if isinstance(subject, Plan):
        _no_sizes(kernel_block_sizes)
        resolution = subject.resolution
        found = [_unknown([resolution.layout.name, *resolution.others])] if resolution.is_guess else []
        found += lint_map(_same_layout(subject.address_map, layout)) + lint_backends(subject)
    elif isinstance(subject, AddressMap):
        _no_sizes(kernel_block_sizes)
        found = lint_map(_same_layout(subject, layout))
    elif isinstance(subject, Mapping):
        _no_sizes(kernel_block_sizes)
        found = lint_tensors(subject)
    elif isinstance(getattr(subject, "address_map", None), AddressMap) and hasattr(subject, "views"):
        _no_sizes(kernel_block_sizes)
        found = lint_map(_same_layout(subject.address_map, layout))
        found += lint_views(subject) if getattr(subject, "buffer", None) is not None else [
            Finding("freed", "note", "The cache was freed: its config is checked, its views are gone.")]
    elif isinstance(subject, KVCacheConfig) or hasattr(subject, "kv_cache_tensors"):
        found = _lint_config(as_config(subject), layout, kernel_block_sizes)
    else:
        raise LayoutError("subject", subject, "can't be linted",
                          "Give a Plan, a KVCacheConfig, an AddressMap, a KVCache or {layer: tensor}")
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def lint_map(address_map: AddressMap) -> list[Finding]:
    """Return the findings of an address map, in no order of severity."""
    claim = lint_claim(address_map)
    # Which strides depend on the block count follows from the layout: a wrong one says nothing of it.
    counts = [] if claim else lint_counts(address_map)
    return [*claim, *lint_bounds(address_map), *lint_sharing(address_map), *lint_limits(offset_limits(address_map)),
            *lint_alignment(address_map), *lint_splits(address_map), *lint_shares(address_map),
            *lint_halves(address_map), *counts]


def _unknown(fits: list[str]) -> Finding:
    return Finding("layout-unknown", "note", f"The config names no layout; its strides fit {' and '.join(fits)}, and "
                   f"it is checked as {fits[0]}.", {"fits": fits}, None, "Give the layout")


def _no_sizes(sizes: object) -> None:
    if sizes is not None:
        raise LayoutError("kernel_block_sizes", sizes, "is for a KVCacheConfig only", "Leave it out")


def _same_layout(address_map: AddressMap, layout: object) -> AddressMap:
    if layout is not None and as_layout(layout) != address_map.layout:
        raise LayoutError("layout", layout, f"contradicts the subject's own, {address_map.layout.name}",
                          "Leave it out, or lint the config under that layout")
    return address_map


def _lint_config(config: KVCacheConfig, layout: object, sizes: object) -> list[Finding]:
    chosen, found = _layout_of(config, layout)
    try:
        return found + lint_map(AddressMap(config, chosen, sizes))
    except LayoutError as error:
        broken, rest = lint_broken(config, chosen, sizes, error)
    if rest is not None:
        seen = {one.rule for one in broken}
        broken += [one for one in lint_map(rest) if one.rule not in seen]
    return found + broken


def _layout_of(config: KVCacheConfig, asked: object) -> tuple[KVCacheLayout | PhysicalLayout, list[Finding]]:
    """The layout to check under, and what there is to say about the choice."""
    own, found = None, []
    if config.kv_cache_layout is not None:
        try:
            own = as_layout(config.kv_cache_layout, "kv_cache_layout")
        except LayoutError as error:
            found.append(Finding("layout-name", "error", f"kv_cache_layout {config.kv_cache_layout!r:.60} "
                                 f"{error.rule}.", {"kv_cache_layout": str(config.kv_cache_layout)[:60]}, None,
                                 error.cure))
    if asked is not None:
        asked = as_layout(asked)
        if own is not None and own != asked:
            found.append(Finding("layout-contradiction", "warning", f"The config says {own.name}; it is checked as "
                                 f"{asked.name}, as asked.", {"own": own.name, "asked": asked.name}))
        return asked, found
    if own is not None:
        return own, found
    try:
        fits = likeliest_first(config)
    except LayoutError:
        fits = []
    if fits:
        names = [layout.name for layout in fits]
        found.append(_unknown(names))
        return fits[0], found
    packed = any(tensor.block_stride > tensor.layer_stride for tensor in config.kv_cache_tensors)
    guess = KVCacheLayout.BLNHC if packed else KVCacheLayout.LBNHC
    strides = [[tensor.layer_stride, tensor.block_stride] for tensor in config.kv_cache_tensors[:8]]
    found.append(Finding("no-layout-fits", "error", "The strides of the tensors, (layer, block) bytes "
                         f"{', '.join(f'({a:,}, {b:,})' for a, b in strides)}, fit none of the six layouts; checked "
                         f"as {guess.name}.", {"strides": strides, "checked_as": guess.name}, None,
                         "Compare each stride with the page size and the block count"))
    return guess, found
