"""The answer of two sides of a transfer, in sentences and tables."""

from __future__ import annotations

from html import escape

import numpy as np

from kvlayout.address import AddressMap, Owner
from kvlayout_widgets.block_ids import ids_words
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.theme import exact_bytes
from kvlayout_widgets.figures.transfer import percent, range_words
from kvlayout_widgets.figures.wording import coordinate_words, count
from kvlayout_widgets.html import paragraph, span, table
from kvlayout_widgets.two_sides import Answer

_SHOWN = 16


def sides_words(answer: Answer, mistake: tuple[str, str] | None) -> str:
    """Return both sides in a few words: "TP 4 LBNHC → rank 1 of TP 2 LBHNC, blocks 0 and 1"."""
    one, target = answer.sources[0], answer.target
    stages = len({stage for stage, _ in answer.source_of})
    taken = {mistake[0]: f" (taken for {mistake[1]})"} if mistake else {}
    return (f"TP {one.tp_size}{f', {stages} stages' if stages > 1 else ''} {one.address_map.layout.name}"
            f"{taken.get('source', '')} → rank {target.tp_rank} of TP {target.tp_size} "
            f"{target.address_map.layout.name}{taken.get('target', '')}, {ids_words(answer.blocks)}")


def verdict(answer: Answer) -> tuple[str, str]:
    """Return ("good" or "refused", a sentence): whether every byte is written once, by its right owner."""
    found, what = answer.found, f"the target's {count(len(answer.blocks), 'B')} in {count(len(answer.layers), 'L')}"
    if found.is_right:
        number = len(found.segments)
        return "good", (f"✓ Each of the {found.target_bytes:,} bytes of {what} is written exactly once, by its right "
                        f"owner, in {number:,} cop{'y' if number == 1 else 'ies'}.")
    parts = [f"{getattr(found, name):,} {words}" for name, words in
             (("wrong", "hold another coordinate's content"), ("twice", "are written more than once"),
              ("missing", "are written by nobody")) if getattr(found, name)]
    elsewhere = ""
    if found.stray:
        outside = f", {found.outside:,} of them past its allocation's end" if found.outside else ""
        elsewhere = f" {found.stray:,} bytes are written elsewhere{outside}."
    return "refused", (f"✗ {percent(found.coverage)} % of the {found.target_bytes:,} bytes of {what} are right"
                       f"{': ' if parts else ''}{', '.join(parts)}.{elsewhere}")


def first_wrong_line(answer: Answer) -> str:
    """Return the first wrong byte in one line, for the picture: where it lies, and whose content lies there."""
    first = answer.found.first_wrong
    if first is None or first.right is None:
        return ""
    right = _at(answer.target.address_map, first.right, "LBHN")
    if first.found is None:
        return f"First wrong byte, {first.offset:,}:   {right} holds a byte that is nobody's at the source"
    axes = "LBHN" if first.found.layer != first.right.layer else "BHN"
    return f"First wrong byte, {first.offset:,}:   {right} holds the source's " \
           f"{_at(answer.sources[first.source].address_map, first.found, axes)}"


def first_wrong_words(answer: Answer) -> str:
    """Return the first wrong byte with both owners in full; "" where there is none."""
    first = answer.found.first_wrong
    if first is None:
        return ""
    right = f"belongs to {place_words(answer.target.address_map, first.right)}" if first.right else "is nobody's"
    return (f"First wrong byte: {first.offset:,} at the target {right}, and holds "
            f"{owner_words(answer, first.source, first.source_offset, first.found)}")


def owner_words(answer: Answer, source: int, offset: int, owner: Owner | None) -> str:
    """Return whose content a byte of a source is: "source rank 0's head slot 0 · state 2 of ..."."""
    stage, rank = answer.source_of[source]
    many = len({stage for stage, _ in answer.source_of}) > 1
    side = f"byte {offset:,} of source rank {rank}{f' of stage {stage}' if many else ''}"
    if owner is None:
        return f"{side}, which nobody owns"
    return f"{side}: {place_words(answer.sources[source].address_map, owner)}"


def place_words(address_map: AddressMap, owner: Owner) -> str:
    """Return an owner in words: "layer 3 · block 1 · head slot 1 · state 0 · K element 0"."""
    return f"{_at(address_map, owner, 'LBHN')} · {owner.field} element {owner.element:,}"


def _at(address_map: AddressMap, owner: Owner, axes: str) -> str:
    return coordinate_words(address_map, Coordinate(owner.layer, owner.block, owner.head, owner.state), axes)


def answer_html(answer: Answer, mistake: tuple[str, str] | None) -> str:
    """Return the verdict, the numbers, who sends how much, and what is moved."""
    kind, sentence = verdict(answer)
    mistaken = "" if mistake is None else paragraph(_mistake_words(answer, *mistake), "line")
    idle = paragraph(_idle_words(answer.idle_blocks), "line")
    return (paragraph(sentence, kind) + idle + mistaken + paragraph(first_wrong_words(answer), "line")
            + numbers_table(answer) + sources_table(answer) + paragraph(_moved_words(answer), "note"))


def numbers_table(answer: Answer) -> str:
    """Return coverage, copies, and the bytes of each fault with the first byte of it."""
    found, lengths = answer.found, answer.found.segments.length
    sizes = range_words(int(lengths.min()), int(lengths.max())) if len(lengths) else "–"
    rows = [("coverage", f"{percent(found.coverage)} %", f"of {exact_bytes(found.target_bytes)}", ""),
            ("segments", f"{len(lengths):,}", f"of {sizes}, {exact_bytes(int(lengths.sum()))} in all", "")]
    first = {"missing": found.first_missing, "twice": found.first_twice, "stray": found.first_stray,
             "wrong": found.first_wrong and found.first_wrong.right}
    meaning = {"missing": "written by nobody", "twice": "written more than once",
               "wrong": "another coordinate's content", "stray": "written outside of the request's blocks",
               "outside": "of these, past the end of the allocation"}
    for name, words in meaning.items():
        number, owner = getattr(found, name), first.get(name)
        where = place_words(answer.target.address_map, owner) if number and owner else ""
        rows.append((name, exact_bytes(number), words, where))
    marked = [(escape(name), span(value, "bad" if name in meaning and value != "0 B" else ""), escape(words),
               escape(where)) for name, value, words, where in rows]
    return table(("", "", "", "first of them"), marked, "What becomes of the target's bytes")


def sources_table(answer: Answer) -> str:
    """Return what each source sends; those that send nothing are counted."""
    segments, rows, idle = answer.found.segments, [], 0
    for index, (stage, rank) in enumerate(answer.source_of):
        mine = segments.length[segments.source == index]
        if not len(mine):
            idle += 1
            continue
        heads = answer.sources[index].heads
        rows.append((f"{rank}", f"{stage}", escape(_heads_words(heads)), f"{len(mine):,}",
                     range_words(int(mine.min()), int(mine.max())), exact_bytes(int(np.sum(mine)))))
    more = f"and {len(rows) - _SHOWN} more ranks. " if len(rows) > _SHOWN else ""
    more += f"{idle} rank{'' if idle == 1 else 's'} send nothing." if idle else ""
    return table(("source rank", "stage", "KV heads", "segments", "bytes each", "bytes in all"), rows[:_SHOWN],
                 "Who sends what") + paragraph(more, "note")


def _heads_words(heads: tuple[int, ...]) -> str:
    return f"{heads[0]}" if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"


def _mistake_words(answer: Answer, side: str, layout: str) -> str:
    maps = {"target": answer.target.address_map, "source": answer.sources[0].address_map}
    own = maps[side].layout.name
    if own == layout:
        return f"{layout} is the {side}'s own layout, so nothing is mistaken."
    return f"The {side} is in {own}, and is taken for {layout}."


def _idle_words(blocks: int) -> str:
    if not blocks:
        return ""
    return f"{count(blocks, 'B')} at the end of the source's list move{'s' if blocks == 1 else ''} nothing: the " \
           "target's blocks hold no more tokens."


def _moved_words(answer: Answer) -> str:
    target = answer.target
    group = target.address_map.region(target.layers[0]).group
    several = len(target.address_map.config.kv_cache_groups) > 1
    where = f" of group {group}, the selected layer's" if several else ""
    heads = f" · {answer.total_heads} KV head{'' if answer.total_heads == 1 else 's'} in all, of which the target " \
            f"holds {_heads_words(target.heads)}"
    more = f" The {count(answer.more_layers, 'L')} that move alike aren't worked out: a layout that scatters a " \
           "state's bytes has each of them moved alone." if answer.more_layers else ""
    return f"Moved: {count(len(target.layers), 'L')}{where}{heads}.{more}"
