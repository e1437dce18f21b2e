"""diff: what two layouts, or two caches, put at different bytes."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from kvlayout.cli.show import AsJson, Backend, Blocks, TpSize, command, put_json, say
from kvlayout.cli.source import is_file, read_plan
from kvlayout.clinic.byte_map import fingerprint
from kvlayout.clinic.wording import map_block_words
from kvlayout.errors import LayoutError
from kvlayout.layout import layout_from_name
from kvlayout.readers import WrongReader, compare_readers


@command
def diff(
    a: Annotated[str, typer.Argument(help="A layout's name, or a file.")],
    b: Annotated[str, typer.Argument(help="Another one, of the same kind.")],
    model: Annotated[str, typer.Option(help="Whose cache two layouts are compared on.")] = "Qwen/Qwen3-0.6B",
    blocks: Blocks = None,
    backend: Backend = None,
    tp: TpSize = 1,
    as_json: AsJson = False,
) -> int:
    """Say how much of a cache lies elsewhere in B than in A, and where that begins."""
    if is_file(a) != is_file(b):
        raise LayoutError("b", b, f"can't be compared with {a}", "Give two layouts, or two files")
    if is_file(a):
        reader = WrongReader(read_plan(a).address_map, read_plan(b).address_map)
    else:
        names = [layout_from_name(name, argument).name for name, argument in ((a, "a"), (b, "b"))]
        plan = read_plan(model, layout=names[0], num_blocks=blocks, backend=backend, tp_size=tp)
        reader = compare_readers(plan, names[1])
    found = difference(reader)
    prints = [fingerprint(one) for one in (reader.writer, reader.reader)]
    if as_json:
        put_json({**found, "fingerprints": prints})
    elif not found["bytes_elsewhere"]:
        say(f"Every byte of {found['bytes']:,} is at the same offset in both ({found['a']} and {found['b']}).")
    else:
        first = found["first"]
        block = map_block_words(reader.writer, first["layer"], first["block"])
        say(f"{found['a']} against {found['b']}: {found['bytes_elsewhere']:,} of {found['bytes']:,} bytes "
            f"({found['byte_share']:.2%}) are elsewhere, in {found['pages_elsewhere']:,} of {found['pages']:,} pages "
            f"({found['page_share']:.2%}).",
            f"The first: {first['layer']}, {block}, head {first['head']}, state {first['state']}, "
            f"byte {first['byte']:,}: offset {first['offset_a']:,} in A, {first['offset_b']:,} in B.")
    if not as_json:
        say(f"Fingerprints: {'equal' if prints[0] == prints[1] else 'not equal'}, {prints[0]} and {prints[1]}.")
    return int(found["bytes_elsewhere"] > 0)


def difference(reader: WrongReader) -> dict:
    """Return what lies elsewhere for the reader, as plain JSON; ``first`` in order of layer, block, head, state."""
    pages = elsewhere = total = moved = 0
    first = None
    for index, _ in enumerate(reader.writer.layers):
        num_blocks, *inner = reader.writer.shape(index)
        page_bytes = int(np.prod(inner))
        shares = np.nan_to_num(reader.shares([index], np.arange(num_blocks))[0])
        pages += num_blocks
        total += num_blocks * page_bytes
        wrong = np.flatnonzero(shares)
        elsewhere += len(wrong)
        moved += int(np.rint(shares * page_bytes).astype(np.int64).sum())
        if first is None and len(wrong):
            first = _first_in(reader, index, int(wrong[0]))
    return {"a": reader.writer.layout.name, "b": reader.reader.layout.name, "bytes": total, "bytes_elsewhere": moved,
            "byte_share": moved / total if total else 0.0, "pages": pages, "pages_elsewhere": elsewhere,
            "page_share": elsewhere / pages if pages else 0.0, "first": first}


def _first_in(reader: WrongReader, index: int, block: int) -> dict:
    """The first coordinate of one page that the two maps place differently."""
    head, state = (int(axis[0]) for axis in np.nonzero(reader.cells(index, block)))
    content = np.arange(reader.writer.shape(index)[3])
    ours, theirs = (one.offset(index, block, head, state, content) for one in (reader.writer, reader.reader))
    byte = int(np.flatnonzero(ours != theirs)[0])
    return {"layer": reader.writer.layers[index], "block": block, "head": head, "state": state, "byte": byte,
            "offset_a": int(ours[byte]), "offset_b": int(theirs[byte])}
