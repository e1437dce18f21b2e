"""shape: what a pasted shape, its strides or a TMA descriptor can mean."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvlayout.cli.show import AsJson, command, put_json, say
from kvlayout.cli.source import STDIN, read_text
from kvlayout.clinic.descriptor import read_descriptor
from kvlayout.clinic.pasted_shapes import PastedTensor, parse_shapes
from kvlayout.clinic.readings import describe_readings, find_readings
from kvlayout.errors import LayoutError


@command
def shape(
    text: Annotated[str, typer.Argument(help="A shape, with strides if known, as pasted; - is stdin.")],
    itemsize: Annotated[int | None, typer.Option(help="Bytes of one element, where the text doesn't say.")] = None,
    as_json: AsJson = False,
) -> int:
    """Say every meaning of the axes that fits; status 1 where none does."""
    pasted = parse_shapes(read_text(text) if text == STDIN else text)
    if not pasted:
        raise LayoutError("text", text, "holds no shape", "Write one such as '(100, 8, 16, 256)'")
    tensors = [_read(one, itemsize) for one in pasted]
    if as_json:
        put_json({"tensors": tensors})
    for one in [] if as_json else tensors:
        say(one["pasted"], *one["sentences"])
    return int(any(not one["readings"] for one in tensors))


def _read(one: PastedTensor, itemsize: int | None) -> dict:
    size = one.itemsize if one.itemsize is not None else itemsize
    if one.kind == "descriptor":
        found = read_descriptor(one.dims, one.byte_strides, size)
        readings, sentences = found.readings, found.sentences()
    else:
        one.check_strides()
        readings = find_readings(one.shape, one.strides, size)
        sentences = describe_readings(readings)
    return {"pasted": one.sentence, "readings": [asdict(reading) for reading in readings], "sentences": sentences}
