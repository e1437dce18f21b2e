"""What a pasted piece of log says: configs, tensors, groups, specs, facts, and what is missing."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from kvlayout.capture.fitting import fitting_layouts, place_alike
from kvlayout.capture.log_facts import Fact, find_facts, is_only_facts
from kvlayout.capture.messages import Message, split_messages
from kvlayout.capture.reader import Reader, SharedTensor
from kvlayout.capture.tree import Call, TreeParser
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.layout import LAYOUT_ALIASES, KVCacheLayout
from kvlayout.spec import KVCacheSpec
from kvlayout.spec_io import SPEC_TYPES

_KNOWN = {"KVCacheConfig", "KVCacheTensor", "KVCacheGroupSpec", *SPEC_TYPES}
MOST_TEXT = 100_000_000  # characters
_ENDS = ("KVCacheConfig(", "KVCacheTensor(", "Spec(", "Specs(")  # how a name that matters ends
_NAME = re.compile(r"[\d.]*+(?P<name>[^\W\d][\w.]*+)\(")
_KEY = re.compile(r"(['\"])([^'\"]+)\1\s*+:\s*+$")
_LONGEST_NAME, _LONGEST_KEY = 400, 300


@dataclass(frozen=True)
class Pasted:
    """What :func:`read` found in a text.

    Attributes:
        config: the first whole KVCacheConfig, as printed; None where there is none
        configs: all different ones; several ranks may have printed theirs
        layouts: for a ``config`` without ``kv_cache_layout``, the layouts that its strides allow
        tensors, groups: every whole one, of configs and by itself
        specs: specs that stand by themselves; layer_specs: those of a dict, by layer name
        shared_tensors: tensors from before vLLM 0.29, which have no strides
        unknown_fields: {"Class.field": values seen} of fields that this release doesn't have
        facts: what log lines state
        problems: why something isn't whole or can't be read
        notes: sentences for a person, the problems among them
    """

    config: KVCacheConfig | None
    configs: tuple[KVCacheConfig, ...]
    layouts: tuple[KVCacheLayout, ...]
    tensors: tuple[KVCacheTensor, ...]
    groups: tuple[KVCacheGroupSpec, ...]
    specs: tuple[KVCacheSpec, ...]
    layer_specs: dict[str, KVCacheSpec]
    shared_tensors: tuple[SharedTensor, ...]
    unknown_fields: dict[str, list[object]]
    facts: tuple[Fact, ...]
    problems: tuple[LayoutError, ...]
    notes: tuple[str, ...]


def parse(text: str) -> KVCacheConfig:
    """Return the KVCacheConfig that vLLM (0.29 to 0.33) printed into ``text``, however it was pasted.

    Raises LayoutError saying what is missing where the text holds no whole config: pieces of one, something elided or
    cut, an unknown spec class, or a config from before 0.29.
    """
    return parse_first(text)[0]


def parse_first(text: str) -> tuple[KVCacheConfig, str]:
    """Return what :func:`parse` does, and a sentence where the text holds several configs; "" where only one.

    Raises LayoutError as that one.
    """
    pasted = read(text)
    if pasted.config is not None:
        return pasted.config, _first_of(len(pasted.configs))
    if pasted.problems:
        raise pasted.problems[0]
    pieces = [f"{len(found)} {name}" for name, found in (
        ("KVCacheTensor", pasted.tensors), ("KVCacheGroupSpec", pasted.groups), ("spec", pasted.specs),
        ("fact of a log line", pasted.facts)) if found]
    raise LayoutError("text", text.strip(),
                      f"holds no KVCacheConfig(...): it has {', '.join(pieces) or 'none of its parts'}",
                      "Paste the whole repr: num_blocks, kv_cache_tensors and kv_cache_groups")


def read(text: str) -> Pasted:
    """Return everything that ``text`` says of KV caches. Raises LayoutError only for what is no text."""
    if not isinstance(text, str):
        raise LayoutError("text", text, "must be text, as pasted from a log")
    if len(text) > MOST_TEXT:
        raise LayoutError("text", f"{len(text):,} characters", f"is longer than the {MOST_TEXT:,} that are read",
                          "Give the lines around KVCacheConfig, or those that state numbers")
    reader, facts, notes = Reader(), [], []
    for message in split_messages(text):
        facts += find_facts(message)
        _read_message(message, reader, notes)
    config = reader.configs[0] if reader.configs else None
    if len(reader.configs) > 1:
        notes.append(_first_of(len(reader.configs)))
    layouts = () if config is None else _layouts(config, facts, notes)
    if reader.unknown_fields:
        notes.append(f"Fields that this release doesn't have, kept aside: {', '.join(reader.unknown_fields)}")
    if reader.shared_tensors:
        notes.append("Specs from before 0.29 lack fields by which backends change a page: sizes may differ")
    facts.sort(key=lambda fact: fact.line)
    return Pasted(config, tuple(reader.configs), tuple(layouts), tuple(reader.tensors), tuple(reader.groups),
                  tuple(reader.specs), reader.layer_specs, tuple(reader.shared_tensors), reader.unknown_fields,
                  tuple(facts), tuple(reader.problems), tuple(notes))


def _first_of(count: int) -> str:
    return f"The text holds {count:,} different configs; the first is taken" if count > 1 else ""


def _read_message(message: Message, reader: Reader, notes: list[str]) -> None:
    if len(message.lines) == 1 and not any(end in message.lines[0][1] for end in _ENDS):
        return  # most lines of a log
    kept = [line for line in message.lines if not is_only_facts(line[1])]
    message = Message(message.process, message.origin, kept)
    text, starts = message.text, message.line_starts
    position = 0
    for end in _ends_of_names(text):
        if end <= position:
            continue
        first = _run_start(text, end, position)
        found = _NAME.match(text, first)
        start = None if found is None or found.end() != end + 1 else _start_of_name(text, found, starts)
        if start is None:
            continue
        key = _KEY.search(text, max(position, first - _LONGEST_KEY), first)
        parser = TreeParser(text, start)
        call = parser.parse()
        position = max(parser.end, start + 1)
        if isinstance(call, Call) and _is_ours(call):
            call.key = None if key is None else key[2]
            before = len(reader.problems)
            if parser.cut is not None:
                at, why = parser.cut
                reader.problems.append(LayoutError("text", text[max(start, at - 40):at], f"is cut here: {why}",
                                                   "Paste the whole repr"))
                position = max(at, start + 1)
            reader.read(call)
            line = message.lines[max(0, bisect_right(starts, start) - 1)][0]
            notes += [f"Line {line}: {problem}" for problem in reader.problems[before:]]


def _ends_of_names(text: str) -> list[int]:
    """Return where the bracket behind each name stands that may be a class' of ours."""
    found = set()
    for end in _ENDS:
        at = text.find(end)
        while at >= 0:
            found.add(at + len(end) - 1)
            at = text.find(end, at + 1)
    return sorted(found)


def _run_start(text: str, end: int, least: int) -> int:
    """Return where the run of a name's characters begins that ends before ``end``."""
    at, least = end, max(least, end - _LONGEST_NAME)
    while at > least and (text[at - 1].isalnum() or text[at - 1] in "._"):
        at -= 1
    return at


def _start_of_name(text: str, found: re.Match, line_starts: list[int]) -> int | None:
    """Return where a known class' name begins; words of the line before may have been joined to it."""
    first, end = found.span("name")
    candidates = [first, *line_starts[bisect_right(line_starts, first):bisect_left(line_starts, end)]]
    dotted = [at for at in candidates if text[at:end].rpartition(".")[2] in _KNOWN]
    if dotted:
        return dotted[0]
    return first if text[first:end].endswith(("Spec", "Specs")) else None


def _is_ours(call: Call) -> bool:
    """A known class, or an unknown one that looks like a spec's."""
    return call.short_name in _KNOWN or "block_size" in call.kwargs


def _layouts(config: KVCacheConfig, facts: list[Fact], notes: list[str]) -> list[KVCacheLayout]:
    """Return what the strides allow where the config doesn't say its layout; notes on that and on what lines say."""
    stated = {fact.values["layout"] for fact in facts if fact.kind == "kv_cache_layout"}
    known = {LAYOUT_ALIASES.get(name) or KVCacheLayout.__members__.get(name) for name in stated} - {None}
    try:
        fits = fitting_layouts(config)
    except LayoutError as error:
        notes.append(f"The config contradicts itself: {error}")
        return []
    names = ", ".join(layout.name for layout in fits) or "none of the six"
    own = config.kv_cache_layout
    if own is not None:
        if own in KVCacheLayout.__members__ and KVCacheLayout[own] not in fits:
            notes.append(f"The config says kv_cache_layout={own}, but its strides fit {names}")
        return []
    if len(fits) == 1:
        notes.append(f"The config has no kv_cache_layout; its strides fit {names} alone")
    else:
        verdict = "" if not fits else \
            ", which place every byte alike" if place_alike(config, fits) else ": strides alone do not decide"
        notes.append(f"The config has no kv_cache_layout; its strides fit {names}{verdict}")
    if len(known) == 1:
        layout = known.pop()
        if layout in fits:
            notes.append(f"A log line says {', '.join(stated)}, which fits: {layout.name}")
            return [layout]
        notes.append(f"A log line says {', '.join(stated)} ({layout.name}), which the strides do not fit")
    return fits
