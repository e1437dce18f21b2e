"""What a cache tensor's shape and strides can mean: every naming of its axes that fits, today's and older ones.

Older caches kept K and V apart, along an axis of 2 before or behind the blocks. Shapes and strides are counted in
elements, as torch gives them. A reading that no backend of vLLM's would make is kept only where nothing else fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvlayout.clinic.axis_orders import TEMPLATES, Template, fit
from kvlayout.clinic.slots import decode_slot
from kvlayout.clinic.wording import plural
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError, check_int

_MOST = 2**63 - 1
_MOST_AXES = 8
_CURE = "Give it as torch shows it, such as (2, 100, 16, 8, 128)"


@dataclass(frozen=True)
class Reading:
    """One meaning of a tensor's axes; all counts are elements, tokens or blocks.

    Attributes:
        axes: one letter an axis of the tensor, L B H N C, and 2 for K and V kept apart
        layouts: the layouts that can't be told apart, by vLLM's name; "NHD" and "HND" where there is an axis of 2,
            or K or V alone
        if_one_layer: layouts that fit too, but only if the allocation holds this one layer
        num_layers, num_blocks, num_heads, num_states: None where the shape doesn't say
        content: C, elements of one state in one head slot; ``head_size`` those of K alone, if K and V are alike
        shape, strides: as asked; strides None where only the shape is known
        itemsize: bytes of one element, or None
        doubts: why no backend of vLLM's would make it; empty for a good reading
        note: what else is to be known of it
    """

    axes: str
    layouts: tuple[str, ...]
    if_one_layer: tuple[str, ...]
    num_layers: int | None
    num_blocks: int
    num_heads: int | None
    num_states: int | None
    content: int
    head_size: int | None
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    itemsize: int | None
    doubts: tuple[str, ...]
    note: str

    def locate(self, slot: int, head: int = 0) -> tuple[int, int, int]:
        """Return (block, row, element) of a token's slot: the element's index from the tensor's first one.

        For K, and layer 0, where those have an axis. Raises LayoutError for a negative slot or one beyond the blocks,
        and for a reading whose tokens have no axis of their own.
        """
        if self.num_states is None:
            raise LayoutError("slot", slot, f"has no place in [{', '.join(self.axes)}], which has no axis of tokens")
        block, row = decode_slot(slot, self.num_states)
        if block is None or block >= self.num_blocks:
            raise LayoutError("slot", slot, f"must be in one of the {self.num_blocks:,} blocks of {self.num_states} "
                              "tokens")
        head = check_int("head", head, minimum=0)
        if head >= (self.num_heads or 1):
            raise LayoutError("head", head, f"must be below the {self.num_heads or 1} heads")
        at = {"B": block, "N": row, "H": head}
        strides = self.strides or contiguous_strides(self.shape)
        return block, row, sum(at.get(axis, 0) * stride for axis, stride in zip(self.axes, strides))

    @property
    def sentence(self) -> str:
        """The reading in words, with its numbers."""
        parts = [plural(self.num_layers, "layer")] if self.num_layers is not None else []
        tokens = "" if self.num_states is None else f" of {plural(self.num_states, 'token')}"
        parts.append(plural(self.num_blocks, "block") + tokens)
        if "2" in self.axes:
            parts.append("K and V apart")
        if self.num_heads is not None:
            parts.append(plural(self.num_heads, "head"))
        size = "" if self.itemsize is None else f" ({self.content * self.itemsize:,} bytes)"
        parts.append(f"{self.content:,} elements{size} a {'state' if self.num_states is not None else 'block'}")
        text = f"[{', '.join(self.axes)}]: {', '.join(parts)}; {self.note}. "
        text += f"Layout {self.layouts[0]}." if len(self.layouts) == 1 else (
            f"Layouts {', '.join(self.layouts)} can't be told apart." if self.layouts else "")
        if self.if_one_layer:
            text += f" {', '.join(self.if_one_layer)} only if the allocation holds one layer."
        return text.strip() + "".join(f" Unlikely: {doubt}." for doubt in self.doubts)


def find_readings(shape, strides=None, itemsize: int | str | None = None, *, every: bool = False) -> list[Reading]:
    """Return every reading that fits a tensor's shape and, if given, its strides (elements); none: an empty list.

    ``itemsize``: bytes of one element, or its type's name; it changes no reading. ``every``: also the readings that
    no backend of vLLM's would make, otherwise returned only where nothing else fits, and pages padded to twice their
    size and more, where other layers in between are likelier. More than one reading means that shape and strides
    alone can't tell. Raises LayoutError for what isn't a shape.
    """
    shape = numbers_in("shape", shape, 1, 1, _CURE)
    if strides is not None:
        strides = numbers_in("strides", strides, 0, 1, _CURE)
        if len(strides) != len(shape):
            raise LayoutError("strides", strides, f"must be one for each of the {len(shape)} axes")
    if isinstance(itemsize, str):
        itemsize = dtype_size_bytes(itemsize)
    if itemsize is not None:
        itemsize = check_int("itemsize", itemsize, minimum=1)
    found = [reading for template in TEMPLATES
             if (reading := _reading(template, shape, strides, itemsize, every)) is not None]
    good = [reading for reading in found if not reading.doubts]
    return found if every or not good else good


def describe_readings(readings: list[Reading]) -> list[str]:
    """Return the readings as plain text, and first of all whether there is one, none, or more than one."""
    if not readings:
        return ["No known cache has such a shape and such strides."]
    head = "One reading fits." if len(readings) == 1 else (
        f"Ambiguous: {len(readings)} readings fit, and this shape{'' if readings[0].strides is None else ', with '}"
        f"{'' if readings[0].strides is None else 'these strides,'} can't tell them apart.")
    return [head, *(reading.sentence for reading in readings)]


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def numbers_in(argument: str, values: object, minimum: int, least: int, cure: str) -> tuple[int, ...]:
    """Return ``least`` to 8 whole numbers, each at least ``minimum`` and below 2^63; else LayoutError."""
    try:
        listed = None if isinstance(values, (str, bytes, dict, set)) else tuple(values)
    except TypeError:
        listed = None
    if listed is None or not least <= len(listed) <= _MOST_AXES:
        raise LayoutError(argument, values, f"must be a list of {least} to {_MOST_AXES} whole numbers", cure)
    found = tuple(check_int(argument, one, minimum=minimum) for one in listed)
    if max(found, default=0) > _MOST:
        raise LayoutError(argument, values, "must be numbers that 63 bits hold")
    return found


def _reading(template: Template, shape, strides, itemsize, every: bool) -> Reading | None:
    if len(shape) != len(template.axes):
        return None
    extent = dict(zip(template.axes, shape))
    if extent.get("2", 2) != 2 or extent.get("X", 16) * extent["C"] % 16 or ("X" in extent and extent["C"] > 16):
        return None
    layouts, alone, half = _layouts(template, extent, strides, every)
    if not layouts and not alone:
        return None
    content = extent["C"] * extent.get("X", 1)
    note = template.note
    if half:
        note = "a view of K's or V's half of each packed state"
    elif template.is_packed:
        note += f", {content // 2:,} each if they are alike" if content % 2 == 0 else ""
    head_size = None if not template.has_head_size else content if half or not template.is_packed else (
        content // 2 if content % 2 == 0 else None)
    heads = extent.get("H", 1 if template.is_latent else None)
    return Reading(template.axes.replace("X", "C"), tuple(layouts), tuple(alone), extent.get("L"), extent["B"], heads,
                   extent.get("N"), content, head_size, shape, strides, itemsize,
                   tuple(_doubts(template, extent, content)), note)


def _layouts(template: Template, extent: dict[str, int], strides, every: bool) -> tuple[list[str], list[str], bool]:
    """Names that fit, those that fit a lone layer only, and whether it takes rows twice as wide as the view."""
    if strides is None:
        return list(dict.fromkeys(order.layout for order in template.orders)), [], False
    step = dict(zip(template.axes, strides))
    for half in (False, True) if template.may_be_half else (False,):
        wide = {**extent, "C": extent["C"] * 2} if half else extent
        ratios = {order: fit(order, wide, step, extent["C"]) for order in template.orders}
        fitting = [order for order, ratio in ratios.items() if ratio is not None]
        lone = [order for order in fitting if order.layers_between and ratios[order] == 1]
        several = [order for order in fitting if order not in lone]
        if not every:
            # Room for whole further pages between blocks is other layers', not padding.
            if any(order.layers_between for order in several):
                several = [order for order in several if order.layers_between or ratios[order] < 2]
            block = math.prod(count for axis, count in wide.items() if axis not in "LB")
            lone = [order for order in lone if step["B"] < 2 * block]
        if several or lone:
            names = list(dict.fromkeys(order.layout for order in several))
            return names, [order.layout for order in lone if order.layout not in names], half
    return [], [], False


def _doubts(template: Template, extent: dict[str, int], content: int) -> list[str]:
    doubts = []
    states, heads = extent.get("N"), extent.get("H", 1)
    if states is not None and states % 16 and not (states == 1 and template.is_latent):
        doubts.append(f"blocks of {states} tokens, where vLLM's backends take multiples of 16")
    if heads > 128:
        doubts.append(f"{heads:,} heads")
    if states is None and content < 1_024:
        doubts.append(f"a block of {content:,} elements holds no 16 tokens of K or V")
    if states is not None and not 16 <= content <= 8_192:
        doubts.append(f"{content:,} elements a state")
    if "L" in extent and (extent["L"] >= extent["B"] or extent["L"] > 512):
        doubts.append(f"{extent['L']:,} layers of {extent['B']:,} blocks")
    return doubts
