"""formula: the user's own offset formula, or a classic wrong one, against where things really lie."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import numpy as np
import typer

from kvlayout.address import AddressMap
from kvlayout.cli.pictures import draw
from kvlayout.cli.show import AsJson, Backend, Blocks, Layout, Model, TpSize, command, put_json, say, table
from kvlayout.cli.source import guess_notes, read_plan, whole
from kvlayout.clinic.classics import CLASSICS, right_formula
from kvlayout.clinic.divergence import Divergence
from kvlayout.clinic.formula import compare_formula
from kvlayout.clinic.formula_hits import Hit
from kvlayout.clinic.formula_names import NAMES, layer_values
from kvlayout.errors import LayoutError

_SHOWN = 8


@command
def formula(
    file: Model,
    text: Annotated[str | None, typer.Argument(
        help="Byte offset of (layer, block, head, token, element); left out, the names that it may use.")] = None,
    length: Annotated[str | None, typer.Option(help="Bytes touched from there on; else one element.")] = None,
    layer: Annotated[list[str] | None, typer.Option(help="Check this layer alone, by index or name; repeat.")] = None,
    block: Annotated[list[str] | None, typer.Option(help="Check this block alone; repeat.")] = None,
    classic: Annotated[str | None, typer.Option(help="A classic mistake instead: " + ", ".join(CLASSICS))] = None,
    layout: Layout = None,
    backend: Backend = None,
    tp: TpSize = 1,
    blocks: Blocks = None,
    out: Annotated[str | None, typer.Option(help="Draw the error map into this file: .png or .svg.")] = None,
    as_json: AsJson = False,
) -> int:
    """Compare an offset formula with the address map; status 1 where it diverges."""
    plan = read_plan(file, layout=layout, backend=backend, num_blocks=blocks, tp_size=None if tp == 1 else tp)
    address_map = plan.address_map
    if text is None and classic is None:
        return _names(address_map, as_json)
    if classic is not None:
        if classic not in CLASSICS:
            raise LayoutError("classic", classic, "is not known", f"Use one of {', '.join(CLASSICS)}")
        if text is not None or length is not None:
            raise LayoutError("classic", classic, "is a formula of its own", "Leave out the text and --length")
        text, length = CLASSICS[classic].formula, CLASSICS[classic].length
    chosen = {"layers": [_layer(one) for one in layer] if layer else None,
              "blocks": [whole("block", one) for one in block] if block else None}
    found = compare_formula(text, address_map, length=length, **chosen)
    if out is not None:
        draw(out, "divergence_figure", found, address_map, title=CLASSICS[classic].title if classic else "",
             spelt=found.sentences()[min(1, len(found.sentences()) - 1)])
    if as_json:
        put_json({**_facts(text, length, found), "guess": guess_notes(plan)})
        return int(found.first is not None)
    if classic is not None:
        say(f"{CLASSICS[classic].title}: {CLASSICS[classic].says}", text, *([f"length {length}"] if length else []))
    say(*guess_notes(plan), *found.sentences())
    if classic is not None and found.is_right:
        say(f"This mistake does no harm on {CLASSICS[classic].right_where}.")
    if found.victims:
        of = "sampled " if found.sampled else ""
        alike = _alike(found)[:_SHOWN]
        table(("whose bytes are hit", f"#{of}bytes", "first by"), [_row(found, hits) for hits in alike])
        rest = found.num_victims - sum(map(len, alike))
        say(*([f"and {rest} more."] if rest else []))
    return int(found.first is not None)


def _layer(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _alike(found: Divergence) -> list[list[Hit]]:
    """The hits, those together that a layer's own coordinates do to it alike in each of several layers."""
    kinds: dict[tuple, list[Hit]] = {}
    for hit in found.victims:
        is_own = hit.by[0] == hit.layer
        kinds.setdefault((hit.bytes, _at(found, hit), hit.by[1:], is_own or (hit.layer, hit.by[0])), []).append(hit)
    return list(kinds.values())


def _at(found: Divergence, hit: Hit) -> str:
    if hit.example is None or hit.example.block < 0:
        return ""
    block = found.block_words(hit.example.layer, hit.example.block)
    return f", {block}" if hit.layer else f", behind {block}"


def _row(found: Divergence, hits: list[Hit]) -> tuple[str, int, str]:
    """One row of hits that are alike: the number of bytes is each one's."""
    hit = hits[0]
    whose = f"nobody's in group {hit.group}" if hit.layer is None else hit.layer
    name, block, head, token, element = hit.by
    by = name
    if len(hits) > 1:
        whose, by = f"{whose} and {len(hits) - 1} more layers, each", "the same layer"
    return whose + _at(found, hit), hit.bytes, \
        f"{by}, {found.block_words(name, block)}, head {head}, token {token}, element {element}"


def _facts(text: str, length: str | None, found: Divergence) -> dict:
    """Everything but the error map, as plain JSON; ``diverging`` is each checked block's share, over all layers."""
    names = ("expected", "found", "found_end", "hit_offset", "share", "outside", "num_victims", "checked", "sampled",
             "sample")
    with_some = ~np.isnan(found.map)
    counts = np.maximum(with_some.sum(axis=0), 1)
    shares = np.where(with_some, found.map, 0).sum(axis=0) / counts
    return {"formula": text, "length": length, "first": found.first and found.first._asdict(),
            **{name: getattr(found, name) for name in names}, "hits": [asdict(one) for one in found.hits],
            "leaves": [one._asdict() for one in found.leaves], "touches_nothing": found.touches_nothing,
            "victims": [asdict(hit) for hit in found.victims],
            "diverging": dict(zip(map(str, found.blocks.tolist()), shares.tolist())),
            "sentences": found.sentences()}


def _names(address_map: AddressMap, as_json: bool) -> int:
    """The names with the first layer's values, the right formula and the classics."""
    sizes = {}
    if address_map.layers:
        axes = tuple(np.zeros(0, dtype=np.int64) for _ in range(4))
        values = layer_values(address_map, 0, axes, NAMES)
        sizes = {name: values[name] for name, (unit, _) in NAMES.items() if isinstance(values[name], int)
                 and unit != "index"}
    right = right_formula(address_map)
    if as_json:
        put_json({"right": right, "names": {name: {"unit": unit, "what": what, "first_layer": sizes.get(name)}
                                            for name, (unit, what) in NAMES.items()},
                  "classics": {slug: asdict(classic) for slug, classic in CLASSICS.items()}})
        return 0
    say(f"Right here: {right}")
    table(("name", "unit", "#first layer", "what it is"), [
        (name, unit, sizes.get(name, ""), what) for name, (unit, what) in NAMES.items()])
    table(("--classic", "what it is"), [(slug, classic.says) for slug, classic in CLASSICS.items()])
    return 0
