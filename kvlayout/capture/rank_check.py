"""Does a rank's memory look as its config says, and do the ranks agree?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from kvlayout.capture.dump import RankDump, RankView
from kvlayout.captured import captured_selection
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError
from kvlayout.finding import Finding
from kvlayout.geometry import layer_views, view_dtype
from kvlayout.layout import layout_from_name
from kvlayout.plan import Plan, make_plan
from kvlayout.spec import MambaSpec


def rank_plan(dump: RankDump, **choices: object) -> Plan:
    """Return our plan of a rank's config; ``choices`` as for :func:`kvlayout.captured.captured_selection`."""
    return make_plan(captured_selection(dump, **choices))


def check_rank(dump: RankDump, plan: Plan | None = None) -> list[Finding]:
    """Return what contradicts ``plan`` (ours, of the dump's own config, unless given) in one rank's views.

    An empty list: each layer's shape, strides, address and element type are those of the plan, in one allocation
    that is large enough.
    """
    found = _layout_names(dump)
    try:
        plan = rank_plan(dump) if plan is None else plan
    except LayoutError as error:
        return [*found, Finding("no-plan", "error", f"Rank {dump.rank}: this config can't be planned: {error}",
                                {"rank": dump.rank})]
    if not plan.config.kv_cache_tensors:
        return found
    found += _storage(dump, plan)
    for region in plan.address_map.regions:
        names = region.tensor.layers
        with_pages = {name: dump.views.get(name, ()) for name in names}
        for name in names:
            if not with_pages[name]:
                found.append(Finding("view-missing", "error", f"Rank {dump.rank}: layer {name} has no tensor.",
                                     {"rank": dump.rank}, {"layer": name}))
        try:
            views = layer_views(region.geometry, names, view_dtype(region.spec), plan.config.size_bytes)
        except LayoutError as error:
            found.append(Finding("view-shape", "error", f"Rank {dump.rank}: our plan has no such view: {error}",
                                 {"rank": dump.rank}, {"layer": names[0]}))
            continue
        for ours in views:
            theirs = with_pages[ours.layer]
            if not theirs:
                continue
            if isinstance(region.spec, MambaSpec) and (len(theirs) > 1 or theirs[0].dtype != ours.dtype):
                found += _states(dump, region.spec, ours, theirs)
            elif ours.layer in dump.remapped:
                found += _remapped(dump, ours, theirs[0])
            else:
                found += _view(dump, ours, theirs[0])
    return found


def _difference(dump: RankDump, layer: str, rule: str, what: str, expected: object, found: object,
                block: int | None = None) -> list[Finding]:
    if expected == found:
        return []
    shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in (expected, found)]
    coordinate = {"layer": layer} if block is None else {"layer": layer, "block": block}
    return [Finding(rule, "error", f"Rank {dump.rank}, layer {layer}: {what} {shown[1]} in the engine, {shown[0]} in "
                    "our plan.", {"rank": dump.rank, "expected": expected, "found": found}, coordinate)]


def _view(dump: RankDump, ours, theirs: RankView) -> list[Finding]:
    """MLA layers and the like drop the axis of their one head slot."""
    shape, stride = list(ours.shape), list(ours.stride_elements)
    seen_shape, seen_stride = list(theirs.shape), list(theirs.stride_elements)
    if len(seen_shape) == 3 and shape[1] == 1:
        del shape[1], stride[1]
    address = dump.base + ours.storage_offset_elements * dtype_size_bytes(ours.dtype)
    found = _difference(dump, ours.layer, "view-dtype", "element type is", ours.dtype, theirs.dtype)
    if len(shape) != len(seen_shape):
        return [*found, *_difference(dump, ours.layer, "view-shape", "shape is", shape, seen_shape)]
    found += _difference(dump, ours.layer, "view-shape", "shape is", shape, seen_shape)
    # The stride of an axis of one step leads nowhere: torch may give it any value.
    steps = [axis for axis, count in enumerate(shape) if count > 1]
    if [stride[axis] for axis in steps] != [seen_stride[axis] for axis in steps]:
        found += _difference(dump, ours.layer, "view-stride", "strides (elements) are", stride, seen_stride)
    return [*found, *_difference(dump, ours.layer, "view-address", "first byte is at", address, theirs.data_ptr, 0)]


def _states(dump: RankDump, spec: MambaSpec, ours, theirs: Sequence[RankView]) -> list[Finding]:
    """State tensors lie one behind the other in the page; block steps are the page's."""
    found, item = [], dtype_size_bytes(ours.dtype)
    begin = dump.base + ours.storage_offset_elements * item
    for index, view in enumerate(theirs):
        size = dtype_size_bytes(view.dtype)
        found += _difference(dump, ours.layer, "view-shape", f"blocks of state {index} are", ours.shape[0],
                             view.shape[0])
        if ours.shape[0] > 1:
            found += _difference(dump, ours.layer, "view-stride", f"bytes from block to block of state {index} are",
                                 ours.stride_elements[0] * item, view.stride_elements[0] * size)
        found += _difference(dump, ours.layer, "view-address", f"first byte of state {index} is at", begin,
                             view.data_ptr, 0)
        begin += math.prod(view.shape[1:]) * size
    kinds = [str(one) for one in spec.dtypes]
    return [*found, *_difference(dump, ours.layer, "view-dtype", "element types of the states are", kinds,
                                 [view.dtype for view in theirs])]


def _remapped(dump: RankDump, ours, theirs: RankView) -> list[Finding]:
    address = dump.base + ours.storage_offset_elements * dtype_size_bytes(ours.dtype)
    return [*_difference(dump, ours.layer, "view-address", "first byte is at", address, theirs.data_ptr, 0),
            Finding("view-remapped", "note", f"Rank {dump.rank}, layer {ours.layer}: its backend maps kernel blocks "
                    "of its own into the packed blocks, so only its first byte is checked.", {"rank": dump.rank},
                    {"layer": ours.layer})]


def _storage(dump: RankDump, plan: Plan) -> list[Finding]:
    found, size = [], plan.config.size_bytes
    for layer, views in dump.views.items():
        for view in views:
            found += _difference(dump, layer, "view-storage", "allocation begins at", dump.base, view.storage_ptr)
            if view.storage_nbytes < size:
                found += _difference(dump, layer, "view-storage", "bytes of the allocation are", size,
                                     view.storage_nbytes)
            if found:
                return found  # the rest would say the same of each layer
    return found


def _layout_names(dump: RankDump) -> list[Finding]:
    names = {where: name for where, name in dump.layout_names.items() if name is not None}
    if len({_layout(name) for name in names.values()}) <= 1:
        return []
    shown = ", ".join(f"{where} says {name}" for where, name in names.items())
    return [Finding("layout-name", "error", f"Rank {dump.rank}: {shown}.", {"rank": dump.rank, **names})]


def check_ranks(dumps: Sequence[RankDump], layout_name: str | None = None) -> list[Finding]:
    """Return which ranks disagree with the control plane, each named.

    ``layout_name``: what the control plane resolved; None takes what most ranks have, rank 0's in a tie. Compared are
    the layout's name, num_blocks, groups (layers within a pipeline stage, specs' kinds and block sizes across all),
    the vLLM build, and whether each rank of the world is there once.
    """
    dumps = sorted(dumps, key=lambda dump: dump.rank)
    if not dumps:
        return []
    found = _present(dumps)
    name = None if layout_name is None else layout_from_name(layout_name, "layout_name").name
    found += _agree(dumps, "rank-layout", "layout is", lambda dump: _layout(_name(dump)), name)
    found += _agree(dumps, "rank-num-blocks", "num_blocks is", lambda dump: dump.config.num_blocks)
    found += _agree(dumps, "rank-groups", "groups are", lambda dump: tuple(
        (type(one.kv_cache_spec).__name__, one.kv_cache_spec.block_size) for one in dump.config.kv_cache_groups))
    for stage in sorted({dump.place.pp_rank for dump in dumps}):
        mine = [dump for dump in dumps if dump.place.pp_rank == stage]
        found += _agree(mine, "rank-groups", "layers of the groups are", lambda dump: tuple(
            group.layer_names for group in dump.config.kv_cache_groups))
    return found + _agree(dumps, "rank-version", "vLLM is", lambda dump: dump.vllm_version)


def _present(dumps: Sequence[RankDump]) -> list[Finding]:
    seen = Counter(dump.rank for dump in dumps)
    world = max(dump.place.world_size for dump in dumps)
    missing = [rank for rank in range(world) if rank not in seen]
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    found = []
    for rule, ranks, what in (("rank-missing", missing, "gave no dump"), ("rank-twice", twice, "gave several dumps")):
        if ranks:
            found.append(Finding(rule, "error", f"Ranks {', '.join(map(str, ranks))} of {world} {what}.",
                                 {"ranks": ranks, "world_size": world}))
    return found


def _agree(dumps: Sequence[RankDump], rule: str, what: str, value, expected: object = None) -> list[Finding]:
    given = expected is not None
    if not given:
        # Counter keeps the order of first sight, so a tie is rank 0's.
        expected = Counter(value(dump) for dump in dumps).most_common(1)[0][0]
    side = "the control plane" if given else "most ranks" if len(dumps) > 2 else f"rank {dumps[0].rank}"
    return [Finding(rule, "error", f"Rank {dump.rank}: {what} {value(dump)}, but {expected} on {side}.",
                    {"rank": dump.rank, "expected": expected, "found": value(dump)})
            for dump in dumps if value(dump) != expected]


def _name(dump: RankDump) -> str | None:
    return dump.layout_names.get("cache_config") or dump.layout_names.get("kv_cache_config")


def _layout(name: str | None) -> str | None:
    """The layout's own name for an alias; an unknown one as it is, so that it shows as a difference."""
    try:
        return None if name is None else layout_from_name(name).name
    except LayoutError:
        return name
