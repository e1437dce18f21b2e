"""One kind of pasted tensor as HTML: every reading, a descriptor's spans, and how it fits this cache."""

from __future__ import annotations

from html import escape

from kvlayout.clinic import (
    OwnView,
    PastedTensor,
    Reading,
    describe_readings,
    find_readings,
    match_views,
    read_descriptor,
)
from kvlayout.errors import LayoutError
from kvlayout_widgets.html import paragraph, span, table

_AXES = {"L": "layer", "B": "block", "H": "head", "N": "token", "C": "content", "2": "K/V"}


def pasted_html(one: PastedTensor, names: list[str], views: list[OwnView], itemsize: int | None,
                slot: int | None) -> str:
    """Return what one kind of tensor can mean; a LayoutError about it alone is said in its place."""
    head = f'<div class="kvl-line"><b>{escape(_title(one, names))}</b></div>' + _bounds(one)
    try:
        size = one.itemsize if one.itemsize is not None else itemsize
        if one.kind == "descriptor":
            return head + _descriptor_html(one, views, size, slot)
        one.check_strides()
        readings = find_readings(one.shape, one.strides, size)
        return (head + _verdict(readings) + _readings_table(readings, views, slot)
                + _match_html(one, next(filter(None, names), ""), views, size))
    except LayoutError as error:
        return head + paragraph(f"✗ {error}", "refused")


def _title(one: PastedTensor, names: list[str]) -> str:
    if one.kind == "descriptor":
        what = f"TMA descriptor, dims {one.dims} inner first, byte strides {one.byte_strides}"
    else:
        strides = "no strides" if one.strides is None else f"strides {one.strides}"
        what = f"shape {one.shape}, {strides}" + (f", {one.dtype}" if one.dtype else "")
    named = [name for name in names if name]
    if len(names) == 1:
        return f"{named[0]}: {what}" if named else what
    return f"{len(names):,} tensors alike" + (f" ({named[0]} to {named[-1]})" if named else "") + f": {what}"


def _bounds(one: PastedTensor) -> str:
    if one.required_bytes is None or one.storage_bytes is None:
        return ""
    over = one.required_bytes - one.storage_bytes
    if over <= 0:
        return paragraph(f"It needs {one.required_bytes:,} bytes of a storage of {one.storage_bytes:,}.", "line")
    return paragraph(f"✗ It needs {one.required_bytes:,} bytes of a storage of {one.storage_bytes:,}: {over:,} too "
                     "many.", "bad")


def _verdict(readings: list[Reading]) -> str:
    said = describe_readings(readings)[0]
    if not readings:
        return paragraph(f"✗ {said}", "bad")
    if len(readings) > 1:
        return paragraph(f"? {said}", "warn")
    return paragraph(f"? {said} It's an unlikely one.", "warn") if readings[0].doubts else paragraph(f"✓ {said}",
                                                                                                     "good")


def _readings_table(readings: list[Reading], views: list[OwnView], slot: int | None) -> str:
    if not readings:
        return ""
    header = ["axes, outermost first as torch has them", "layouts", "holds", "against this cache"]
    rows = []
    for one in readings:
        row = [_axes(one), _layouts(one), escape(_holds(one)), _against(one, views)]
        rows.append(row if slot is None else [*row, escape(_place(one, slot))])
    return table(header if slot is None else [*header, f"slot {slot:,}"], rows)


def _axes(one: Reading) -> str:
    return " ".join(f"<b>{escape(_AXES[axis])}</b>&nbsp;{count:,}" + ("," if number + 1 < len(one.axes) else "")
                    for number, (axis, count) in enumerate(zip(one.axes, one.shape)))


def _layouts(one: Reading) -> str:
    text = escape(", ".join(one.layouts))
    if len(one.layouts) > 1:
        text += "<br>" + span("can't be told apart", "soft")
    if one.if_one_layer:
        text += "<br>" + span(f"{', '.join(one.if_one_layer)} only if the allocation holds one layer", "soft")
    return text


def _holds(one: Reading) -> str:
    size = "" if one.itemsize is None else f" ({one.content * one.itemsize:,} bytes)"
    unit = "a state" if one.num_states is not None else "a block"
    return f"{one.note}; {one.content:,} elements{size} {unit}" + "".join(f"; unlikely: {why}" for why in one.doubts)


def _against(one: Reading, views: list[OwnView]) -> str:
    """What counts of the reading this cache has otherwise, for the view that comes nearest."""
    if not views:
        return span("it has no view", "soft")
    differences = min((view.differences(one) for view in views), key=len)
    return span("the same counts", "good") if not differences else escape("; ".join(differences))


def _place(one: Reading, slot: int) -> str:
    try:
        block, row, element = one.locate(slot)
    except LayoutError as error:
        return f"✗ {error.rule}"
    return f"block {block:,}, row {row:,}, element {element:,}"


def _match_html(one: PastedTensor, name: str, views: list[OwnView], itemsize: int | None) -> str:
    """Whether this cache has such a view."""
    how, view = match_views(views, one.shape, one.strides, name)
    if view is None:
        return paragraph("This cache has no view to compare with.", "note")
    whose = view.layers[0] if len(view.layers) == 1 else f"{len(view.layers):,} layers ({view.layers[0]} …)"
    own = f"shape {view.shape}, strides {view.strides}, {view.dtype}"
    is_alike = itemsize in (None, view.itemsize)
    kind, size = ("good", "") if is_alike else ("warn", f" Its elements have {view.itemsize} bytes, not {itemsize}.")
    if how == "equal":
        return paragraph(f"✓ Shape and strides are this cache's view of {whose}.{size}", kind)
    if how == "shape":
        return paragraph(f"✓ The shape is this cache's view of {whose}; its strides are {view.strides}.{size}", kind)
    if how == "strides":
        return paragraph(f"✗ The shape is this cache's view of {whose}, but the strides aren't: it has "
                         f"{view.strides}.{size}", "bad")
    if how == "permuted":
        order = view.order(one.shape, one.strides)
        moved = [axis for axis, source in enumerate(order) if axis != source]
        turned = f"axes {moved[0]} and {moved[1]} swapped" if len(moved) == 2 else f"its axes in the order {order}"
        return paragraph(f"✓ This is this cache's view of {whose}, {turned}.{size}", kind)
    return paragraph(f"· Not a view of this cache: {whose} {'has' if len(view.layers) == 1 else 'have'} {own}.",
                     "note")


def _descriptor_html(one: PastedTensor, views: list[OwnView], itemsize: int | None, slot: int | None) -> str:
    found = read_descriptor(one.dims, one.byte_strides, itemsize)
    readings = list(found.readings)
    passed = sum(block is not None for block in found.first_blocks.values())
    facts = found.sentences()
    facts = facts[:len(facts) - len(readings) - len(found.notes)]
    plain, limits = facts[:len(facts) - passed], facts[len(facts) - passed:]
    return "".join((
        *(paragraph(fact, "line") for fact in plain),
        *(paragraph(f"! {fact}", "amber") for fact in limits),
        "" if passed else paragraph("Every block begins below 2^31 bytes.", "line"),
        *(paragraph(f"! {note}", "warn") for note in found.notes),
        _verdict(readings) + _readings_table(readings, views, slot)))
