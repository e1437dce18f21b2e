"""Facts of an address map as short English, for titles, call-outs and alt texts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvlayout.address import AddressMap
from kvlayout.clinic.wording import map_block_words
from kvlayout.layout import AXES
from kvlayout.region import Region
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.theme import AXIS_WORDS, exact_address, exact_bytes, format_bytes, step_bytes

_COORDINATE_NAMES = {"B": "block", "H": "head", "N": "state", "C": "byte"}


def physical_axes(address_map: AddressMap) -> str:
    """Return the axis letters in physical order, outermost first: the layout's name."""
    return "".join(AXES[axis] for axis in address_map.layout.stride_order)


def count(number: int, axis: str) -> str:
    """Return "28 layers", "1 block" ..."""
    return f"{number:,} {AXIS_WORDS[axis][number != 1]}"


def layer_number(name: str) -> str:
    """Return the number of a layer in its model as its name has it, or else the name."""
    found = re.search(r"layers?\.?_?(\d+)", name) or re.search(r"(\d+)", name)
    return found.group(1) if found else name


def layer_words(address_map: AddressMap, name: str) -> str:
    """Return "layer 12", with the whole name where another layer of the map has that number too."""
    number = layer_number(name)
    alike = sum(layer_number(other) == number for other in address_map.layers)
    return f"layer {number} ({name})" if alike > 1 else f"layer {number}"


def coordinate_words(address_map: AddressMap, coordinate: Coordinate, axes: str = AXES) -> str:
    """Return a coordinate in words, limited to these axes: "layer 12 · block 37 · head slot 0"."""
    parts = {"L": layer_words(address_map, coordinate.layer),
             "B": map_block_words(address_map, coordinate.layer, coordinate.block),
             "H": f"head slot {coordinate.head}", "N": f"state {coordinate.state}", "C": f"byte {coordinate.byte:,}"}
    return " · ".join(parts[axis] for axis in AXES if axis in axes)


def address_words(address_map: AddressMap, coordinate: Coordinate) -> str:
    """Return "offset 68,681,728 B = 0x4180000"."""
    return f"offset {exact_address(coordinate.offset(address_map))}"


def step(address_map: AddressMap, coordinate: Coordinate, axis: str) -> int | None:
    """Return the bytes from a coordinate to the next one along ``axis``; None where it is the last one.

    The next layer is the next one of the same group.
    """
    here = {"layer": coordinate.layer, "block": coordinate.block, "head": coordinate.head,
            "state": coordinate.state, "byte": coordinate.byte}
    there = dict(here)
    if axis == "L":
        names = address_map.config.kv_cache_groups[address_map.region(coordinate.layer).group].layer_names
        index = names.index(coordinate.layer) + 1
        if index == len(names):
            return None
        there["layer"] = names[index]
    else:
        there[_COORDINATE_NAMES[axis]] += 1
    extents = address_map.shape(there["layer"])
    if any(there[_COORDINATE_NAMES[a]] >= n for a, n in zip("BHNC", extents)):
        return None
    return address_map.offset(**there) - address_map.offset(**here)


def steps_words(address_map: AddressMap, coordinate: Coordinate, axes: str) -> str:
    """Return the distances to the neighbours: "next block +1,835,008 B · next layer +65,536 B"."""
    found = []
    for axis in axes:
        word, distance = AXIS_WORDS[axis][0], step(address_map, coordinate, axis)
        found.append(f"next {word} {step_bytes(distance)}" if distance is not None else f"last {word}")
    return " · ".join(found)


@dataclass(frozen=True)
class _Between:
    """What one step along an axis passes over: in words, its bytes, and the bytes beyond it (padding or others)."""

    words: str
    formula: str
    covered: int
    rest: int


def _between(address_map: AddressMap, layer: str, axis: str) -> _Between | None:
    """Return what lies between two indices of ``axis``; None where nothing does."""
    region = address_map.region(layer)
    extents, strides = dict(zip(AXES, region.geometry.shape)), dict(zip(AXES, region.geometry.strides))
    order = physical_axes(address_map)
    inner = [a for a in order[order.index(axis) + 1:] if extents[a] > 1]
    if not inner:
        return None
    covered, words = extents[inner[0]] * strides[inner[0]], count(extents[inner[0]], inner[0])
    formula = f"{words} × {strides[inner[0]]:,} B"
    if inner == ["C"]:
        words, formula = "C, the content of one state", f"C, {exact_bytes(covered)}"
    if axis == "B" and address_map.layout.is_block_outermost:
        regions = [r for r in address_map.regions if r.group == region.group]
        pages = {r: (len(r.layers), r.page_size_bytes) for r in regions}
        covered, layers = sum(n * page for n, page in pages.values()), sum(n for n, _ in pages.values())
        words = count(layers, "L") if layers > 1 else "one page"
        formula = " + ".join(f"{count(n, 'L')} × {page:,} B" for n, page in pages.values())
    elif set(inner) <= set("HNC") and address_map.layout.is_block_compact and axis in "LB":
        covered, words, formula = region.page_size_bytes, "one page", "one page"
        padding = covered - region.spec.unpadded_page_size_bytes
        if region.spec.page_size_padded is not None and padding:
            words = f"one page, {format_bytes(covered - padding)} and {format_bytes(padding)} of padding,"
            formula = f"one page, {covered - padding:,} B + {padding:,} B padding"
    return _Between(words, formula, covered, strides[axis] - covered)


def jump(address_map: AddressMap, layer: str, axis: str) -> str:
    """Return why one step along ``axis`` is as long as it is: "one block jumps 1.75 MiB because 28 layers lie in
    between"."""
    geometry = address_map.region(layer).geometry
    word = AXIS_WORDS[axis][0]
    if geometry.shape[AXES.index(axis)] <= 1:
        return f"there is no second {word}" + (" of this kind" if axis == "L" else "")
    start, between = f"one {word} jumps {format_bytes(geometry.strides[AXES.index(axis)])}", _between(
        address_map, layer, axis)
    if between is None:
        return f"{start}: nothing lies in between"
    if between.rest < 0:
        return f"{start}, although {between.words} need {format_bytes(between.covered)}"
    if between.rest:
        return f"{start} because {between.words} and {format_bytes(between.rest)} of padding or others lie in between"
    if between.words.startswith("C,"):
        return f"{start}: {between.words}"
    return f"{start} because {between.words} {'lies' if between.words.startswith('one ') else 'lie'} in between"


def formula(address_map: AddressMap, layer: str, axis: str) -> str:
    """Return how a stride comes about: "= 28 layers × 65,536 B"."""
    between = _between(address_map, layer, axis)
    if between is None:
        return "side by side"
    rest = f" {'+' if between.rest > 0 else '−'} {abs(between.rest):,} B" if between.rest else ""
    return f"= {between.formula}{rest}" + (
        " of padding or others" if between.rest > 0 else ", less than that" if between.rest else "")


def kind_words(spec: object) -> str:
    """Return a spec's class in plain words: "full attention", "sliding window", "Mamba"."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", type(spec).__name__.removesuffix("Spec"))
    return " ".join(word if word.isupper() or word == "Mamba" else word.lower() for word in words)


def group_words(address_map: AddressMap, group: int) -> str:
    """Return "group 0: full attention, 5 layers"."""
    found = address_map.config.kv_cache_groups[group]
    # A pipeline stage may have none of a group's layers.
    specs = list(found.layer_specs.values()) or [found.kv_cache_spec]
    kinds = dict.fromkeys(kind_words(spec) for spec in specs)
    return f"group {group}: {' + '.join(kinds)}, {count(len(found.layer_names), 'L')}"


def region_words(address_map: AddressMap, region: Region) -> str:
    """Return a tensor's layers in words: "group 1: Mamba, 6 layers, page 2 MiB"."""
    start = f"group {region.group}: " if len(address_map.config.kv_cache_groups) > 1 else ""
    return (f"{start}{kind_words(region.spec)}, {count(len(region.layers), 'L')}, "
            f"page {format_bytes(region.page_size_bytes)}")


def page_words(address_map: AddressMap) -> str:
    """Return "page 64 KiB", or the page sizes where layers differ."""
    sizes = list(dict.fromkeys(region.page_size_bytes for region in address_map.regions))
    shown = ", ".join(format_bytes(size) for size in sizes[:3])
    if len(sizes) > 3:
        shown += f" and {len(sizes) - 3} more"
    return f"page{'s' if len(sizes) > 1 else ''} {shown}" if sizes else "no pages"
