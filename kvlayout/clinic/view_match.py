"""Is a tensor of this shape one of this cache's own views, and if not, which number of it is another one?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from kvlayout.address import AddressMap
from kvlayout.clinic.readings import Reading
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError, check_type
from kvlayout.geometry import layer_views, view_dtype
from kvlayout.spec import KVCacheSpec

_PACKED = ("BHNC", "LBHNC", "BNC", "LBNC")  # axes of readings whose states hold K and V, or a latent


@dataclass(frozen=True)
class OwnView:
    """The view [B, H, N, C] of some layers; ``shape`` and ``strides`` count elements of ``dtype``.

    ``apart``: elements a state of K's or of V's, where they are alone; all of C where there is no V.
    """

    layers: tuple[str, ...]
    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    dtype: str
    apart: tuple[int, ...] = ()

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return dtype_size_bytes(self.dtype)

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether ``shape`` is this view's, also with the axis of a lone head slot left out."""
        return tuple(shape) in (self.shape, *([self._without_head(self.shape)] if self.shape[1] == 1 else []))

    def has_strides(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        """Whether a tensor of this view's shape has its strides too; those of axes of one element don't matter."""
        own = self.strides if len(shape) == 4 else self._without_head(self.strides)
        return all(count == 1 or mine == theirs for count, mine, theirs in zip(shape, own, strides))

    def order(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the order of this view's axes that a tensor has, (0, 2, 1, 3) for two swapped; None for no order."""
        axes = range(4) if len(shape) == 4 else (0, 2, 3) if len(shape) == 3 and self.shape[1] == 1 else ()
        mine = [(self.shape[axis], self.strides[axis]) for axis in axes]
        orders = sorted(permutations(range(len(mine))), key=lambda one: sum(a != b for a, b in enumerate(one)))
        return next((one for one in orders if one and all(
            count == mine[axis][0] and (count == 1 or step == mine[axis][1])
            for axis, count, step in zip(one, shape, strides))), None)

    def differences(self, reading: Reading) -> list[str]:
        """Return the counts that a reading has otherwise than this view: ["blocks 100, not 64"]; [] for none."""
        blocks, heads, states, content = self.shape
        if reading.axes not in _PACKED or "half" in reading.note:  # K or V alone
            apart = self.apart or (content // 2,)
            content = reading.content if reading.content in apart else apart[0]
        mine = {"blocks": blocks, "heads": heads, "tokens": states, "elements a state": content}
        folded = reading.num_heads is None or reading.num_states is None  # then C holds more than one state's
        theirs = {"blocks": reading.num_blocks, "heads": reading.num_heads, "tokens": reading.num_states,
                  "elements a state": None if folded else reading.content}
        return [f"{name} {count:,}, not {mine[name]:,}" for name, count in theirs.items()
                if count is not None and count != mine[name]]

    @staticmethod
    def _without_head(four: tuple) -> tuple:
        return four[0], four[2], four[3]


def own_views(address_map: AddressMap) -> list[OwnView]:
    """Return each distinct view of a map's layers with the layers that have it, in the map's order.

    A page that its element type can't view is given in bytes (int8).
    """
    check_type("address_map", address_map, AddressMap)
    found: dict[tuple, list[str]] = {}
    for region in address_map.regions:
        geometry, dtype = region.geometry, view_dtype(region.spec)
        try:
            size = max(address_map.size_bytes, geometry.end)  # whether it fits is another question
            view, = layer_views(geometry, region.tensor.layers[:1], dtype, size)
        except LayoutError:
            found.setdefault((geometry.shape[1:], geometry.strides[1:], "int8", ()), []).extend(region.tensor.layers)
            continue
        found.setdefault((view.shape, view.stride_elements, view.dtype, _apart(region.spec, view.shape[3])),
                         []).extend(region.tensor.layers)
    return [OwnView(tuple(layers), *key) for key, layers in found.items()]


def _apart(spec: KVCacheSpec, content: int) -> tuple[int, ...]:
    sizes = getattr(spec, "head_size", 0), getattr(spec, "head_size_v", 0)
    if sizes[1] == 0 and sizes[0] == content:
        return (content,)
    return tuple(dict.fromkeys(sizes)) if sum(sizes) == content else ()


def match_views(views: list[OwnView], shape, strides=None, layer: str = "") -> tuple[str, OwnView | None]:
    """Return how a tensor (elements) fits the views, and the one it fits best.

    "equal": shape and strides are one's; "shape": the shape is, strides aren't said; "strides": the shape is, its
    strides are others; "permuted": axes of one, in another order; "other": no view has that shape. ``layer``: only
    that one's view, where a view has it.
    """
    mine = [view for view in views if layer in view.layers] or views
    same = [view for view in mine if view.has_shape(tuple(shape))]
    if strides is not None and not any(view.has_strides(tuple(shape), tuple(strides)) for view in same):
        turned = next((view for view in mine if view.order(tuple(shape), tuple(strides))), None)
        if turned is not None:
            return "permuted", turned
    if not same:
        return "other", mine[0] if mine else None
    if strides is None:
        return "shape", same[0]
    equal = [view for view in same if view.has_strides(tuple(shape), tuple(strides))]
    return ("equal", equal[0]) if equal else ("strides", same[0])
