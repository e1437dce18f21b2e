"""Physical layouts: the order in which the axes [L, B, H, N, C] lie in memory, outermost first.

L layer, B block, H KV-head slot, N token state, C content of one (H, N) cell in bytes.
vLLM (0.29 and newer) knows the six of :class:`KVCacheLayout`; :class:`PhysicalLayout` is any permutation.
Source of the six and of their properties: vLLM 0.33.0, ``vllm/v1/kv_cache_layout.py``.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from itertools import permutations

from kvlayout.entry_points import Plugin, read_plugins
from kvlayout.errors import LayoutError

AXES = "LBHNC"
L, B, H, N, C = range(5)


class _AxisOrder:
    """Properties that follow from ``stride_order`` alone, shared by both kinds of layout."""

    name: str
    stride_order: tuple[int, ...]

    @property
    def layer_view_order(self) -> tuple[int, ...]:
        """Physical order of the axes of one layer's view [B, H, N, C], as indices into those four."""
        return tuple(axis - 1 for axis in self.stride_order if axis != L)

    @property
    def is_layer_compact(self) -> bool:
        """Each layer is one region: L is outermost."""
        return self.stride_order[0] == L

    @property
    def is_block_contiguous(self) -> bool:
        """The innermost three are H, N, C in that order."""
        return self.stride_order[-3:] == (H, N, C)

    @property
    def is_block_compact(self) -> bool:
        """Each page is one contiguous run: L and B are the two outermost."""
        return set(self.stride_order[:2]) == {L, B}

    @property
    def is_block_outermost(self) -> bool:
        """All bytes of a block lie together: B is outermost."""
        return self.stride_order[0] == B


class KVCacheLayout(_AxisOrder, Enum):
    """The six layouts of vLLM; a member's value is its ``stride_order``."""

    LBHNC = (L, B, H, N, C)
    LBNHC = (L, B, N, H, C)
    LHBNC = (L, H, B, N, C)
    BLHNC = (B, L, H, N, C)
    BLNHC = (B, L, N, H, C)
    BHLNC = (B, H, L, N, C)

    @property
    def stride_order(self) -> tuple[int, ...]:
        """Logical axis indices (into [L, B, H, N, C]) in physical order, outermost first."""
        return self.value


class PhysicalLayout(_AxisOrder):
    """Any permutation of the five axes, for prototypes: ``PhysicalLayout("HBLNC")``.

    Equal to, and hashed like, the :class:`KVCacheLayout` member of the same name.
    """

    __slots__ = ("name", "stride_order")

    def __init__(self, name: str):
        if not isinstance(name, str) or sorted(name) != sorted(AXES):
            raise LayoutError("layout", name, "must name each of the axes L, B, H, N, C exactly once",
                              "Write the physical order, outermost first, for example 'HBLNC'")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "stride_order", tuple(AXES.index(letter) for letter in name))

    def __setattr__(self, attribute, value):
        raise AttributeError(f"PhysicalLayout is immutable; cannot set {attribute}")

    def __reduce__(self):
        return PhysicalLayout, (self.name,)

    def __eq__(self, other):
        return self.name == other.name if isinstance(other, _AxisOrder) else NotImplemented

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"PhysicalLayout({self.name!r})"


def all_layouts() -> list[KVCacheLayout | PhysicalLayout]:
    """Return all 120 orders of the axes: vLLM's six as members, then the others in the order of L, B, H, N, C."""
    names = ("".join(order) for order in permutations(AXES))
    return [*KVCacheLayout, *(PhysicalLayout(name) for name in names if name not in KVCacheLayout.__members__)]


LAYOUT_ALIASES = {"NHD": KVCacheLayout.LBNHC, "HND": KVCacheLayout.LBHNC}
_NAMES = f"Use one of {', '.join(KVCacheLayout.__members__)}, an alias (NHD is LBNHC, HND is LBHNC)"


def layout_from_name(name: str, argument: str = "layout") -> KVCacheLayout:
    """Return the layout of that name or alias (NHD is LBNHC, HND is LBHNC).

    Names are exact: lower case is refused, as in vLLM 0.33.0 (``vllm/config/cache.py``).
    Raises LayoutError naming ``argument`` and the valid ones.
    """
    if isinstance(name, str):
        if name in LAYOUT_ALIASES:
            return LAYOUT_ALIASES[name]
        if name in KVCacheLayout.__members__:
            return KVCacheLayout[name]
    raise LayoutError(argument, name, "is not a KV cache layout", _NAMES)


def as_layout(layout: object, argument: str = "layout") -> KVCacheLayout | PhysicalLayout:
    """Return ``layout`` given as a member, a prototype, a name, or vLLM's own enum member.

    A name may also be any order of the five letters, which is a prototype, or one that a plugin registers. Raises
    LayoutError naming ``argument``.
    """
    if isinstance(layout, _AxisOrder):
        return layout
    if isinstance(layout, str):
        if layout in KVCacheLayout.__members__ or layout in LAYOUT_ALIASES:
            return layout_from_name(layout, argument)
        if sorted(layout) == sorted(AXES):
            return PhysicalLayout(layout)
        if layout in plugin_layouts():
            return plugin_layouts()[layout]
        raise LayoutError(argument, layout, "is not a KV cache layout",
                          f"{_NAMES}, or for a prototype any other order of these letters")
    if isinstance(layout, Enum) and layout.name in KVCacheLayout.__members__:
        return KVCacheLayout[layout.name]
    raise LayoutError(argument, layout, "is not a KV cache layout",
                      "Give a KVCacheLayout, a PhysicalLayout or a name such as 'LBNHC'")


@cache
def plugin_layouts() -> dict[str, KVCacheLayout | PhysicalLayout]:
    """Return {name: the order that it stands for} of what plugins register. Shared: don't change it."""
    def refuse(name: str) -> str:
        upper = name.upper()
        taken = upper in KVCacheLayout.__members__ or upper in LAYOUT_ALIASES
        return f"{upper} is a layout of vLLM" if taken else (
            f"{upper} is itself an order of the axes" if sorted(upper) == sorted(AXES) else "")

    def make(plugin: Plugin) -> KVCacheLayout | PhysicalLayout:
        order = plugin.value if isinstance(plugin.value, _AxisOrder) else PhysicalLayout(plugin.value)
        return KVCacheLayout.__members__.get(order.name, order)

    return read_plugins("layouts", refuse, make)
