"""Facts that vLLM's log lines state, as typed records that can be checked against a config.

Whitespace is ignored, so that a wrapped line reads as a whole one. Each pattern is written without any.
Sources: vLLM 0.33.0 ``vllm/v1/core/kv_cache_utils.py``, ``vllm/v1/worker/gpu_worker.py``,
``vllm/platforms/interface.py``, the NIXL and Mooncake connectors; torch's storage check; older releases' wordings.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from kvlayout.capture.messages import Message


@dataclass(frozen=True)
class Fact:
    """``kind`` and its ``values`` {name: number, text, truth or tuple}; ``line`` (from 1) and its ``text``."""

    kind: str
    values: dict[str, object]
    line: int
    text: str


_N = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_LAYOUT = "LBHNC|LBNHC|LHBNC|BLHNC|BLNHC|BHLNC|NHD|HND"
_LIST = r"(?:torch\.Size\()?[\[(][\d,]*[\])]\)?"
_PATTERNS = {
    "kv_cache_size": rf"(?P<device>[A-Z]{{3,5}})KVcachesize:(?P<tokens>{_N})tokens",
    "maximum_concurrency": rf"Maximumconcurrencyfor(?P<tokens>{_N})tokensperrequest:(?P<times>{_N})x",
    "available_kv_cache_memory": rf"AvailableKVcachememory:(?P<gib>-?{_N})GiB",
    "kv_cache_memory_needed": rf"(?<![\d,.])(?P<needed_gib>{_N})GiBKVcacheisneeded,whichislargerthantheavailable"
                              rf"KVcachememory\((?P<available_gib>{_N})GiB\)",
    "attention_block_size": rf"Settingattentionblocksizeto(?P<tokens>{_N})tokens",
    "mamba_page_padding": rf"Paddingmambapagesizeby(?P<percent>{_N})%",
    "num_gpu_blocks_override": rf"Overridingnum_gpu_blocks=(?P<num_gpu_blocks>{_N})with"
                               rf"num_gpu_blocks_override=(?P<override>{_N})",
    "num_gpu_blocks": rf"\#?GPUblocks:(?P<num_gpu_blocks>{_N})(?:,\#?CPUblocks:(?P<num_cpu_blocks>{_N}))?",
    "kv_cache_layout": rf"Using(?P<layout>{_LAYOUT})KVcachelayout(?:for(?P<backend>[A-Z][A-Z0-9_]*)backend)?",
    "connector_layout": rf"(?P<connector>[A-Z]\w{{0,80}})settingKVcachelayoutto(?P<layout>{_LAYOUT})for",
    "requested_layout": rf"VLLM_KV_CACHE_LAYOUT['\"]?[=:]['\"]?(?P<layout>{_LAYOUT})",
    "registered_kv_caches": rf"RegisteringKV_?Caches[:.]use_mla:(?P<use_mla>True|False)"
                            rf"(?:,num_blocks:(?P<num_blocks>\d+))?(?:,block_shape:(?P<block_shape>{_LIST}))?"
                            rf"(?:,per_layer_kv_cache_shape:(?P<per_layer_kv_cache_shape>{_LIST}))?"
                            rf"(?:,kv_buffer_device:(?P<kv_buffer_device>[a-z]+))?",
    "storage_bounds": rf"setStorage:sizes(?P<sizes>{_LIST}),strides(?P<strides>{_LIST}),storageoffset"
                      rf"(?P<storage_offset>\d+),anditemsize(?P<itemsize>\d+)requiringastoragesizeof"
                      rf"(?P<required_bytes>\d+)areoutofboundsforstorageofsize(?P<storage_bytes>\d+)",
    # The same, cut or elided before.
    "storage_size": r"outofboundsforstorageofsize(?P<storage_bytes>\d+)",
}
_LONGEST_NUMBER = 40  # digits; Python refuses to read very long ones
_FACT = re.compile("|".join(f"(?P<_{kind}>{re.sub(r'[(][?]P<(?!_)', f'(?P<{kind}__', pattern)})"
                            for kind, pattern in _PATTERNS.items()))
# What stands in every match, and how many characters before it one may begin: found by str.find, so that only the
# few places where a fact may be are matched at all.
_ANCHORS = {
    "KVcachesize:": 5, "Maximumconcurrencyfor": 0, "AvailableKVcachememory:": 0, "GiBKVcacheisneeded": 60,
    "Settingattentionblocksizeto": 0, "Paddingmambapagesizeby": 0, "Overridingnum_gpu_blocks=": 0, "GPUblocks:": 1,
    "KVcachelayout": 10, "settingKVcachelayoutto": 81, "VLLM_KV_CACHE_LAYOUT": 0, "RegisteringKV": 0,
    "setStorage:sizes": 0, "outofboundsforstorageofsize": 0,
}
_REPR = re.compile(r"KVCache\w{1,80}\(|Spec\w{0,80}\(")


def find_facts(message: Message) -> list[Fact]:
    """Return the facts of one message, in its order."""
    squashed = ["".join(body.split()) for _, body in message.lines]
    starts = [0, *accumulate(map(len, squashed))]
    facts = []
    for found in _matches("".join(squashed)):
        number, text = message.lines[max(0, bisect_right(starts, found.start(), hi=len(squashed)) - 1)]
        kind = found.lastgroup.partition("__")[0].removeprefix("_")
        values = {name.partition("__")[2]: _value(value) for name, value in found.groupdict().items()
                  if name.startswith(f"{kind}__") and value is not None}
        facts.append(Fact(kind, values, number, text))
    return facts


def is_only_facts(body: str) -> bool:
    """Whether a line states facts and holds no part of a repr: amid one, it is another message's."""
    return next(_matches("".join(body.split())), None) is not None and _REPR.search(body) is None


def _matches(squashed: str) -> Iterator[re.Match]:
    """Yield the facts' matches in text without whitespace, none over another."""
    places = []
    for anchor, before in _ANCHORS.items():
        at = squashed.find(anchor)
        while at >= 0:
            places.append((at - before, at))
            at = squashed.find(anchor, at + 1)
    end = 0
    for first, last in sorted(places):
        start = max(first, end)
        while start <= last:
            found = _FACT.match(squashed, start)
            if found is None:
                start += 1
                continue
            # Another anchor's fact may lie before this one's.
            start = end = found.end()
            yield found


def _value(text: str) -> object:
    """Return "1,024" and "20.79" as numbers, "[1, 2]" as a tuple, "True" as a truth, other text as it is."""
    if text in ("True", "False"):
        return text == "True"
    listed = text.removeprefix("torch.Size(")
    if listed[:1] in ("[", "("):
        numbers = re.findall(r"\d+", listed)
        return tuple(map(int, numbers)) if all(len(one) <= _LONGEST_NUMBER for one in numbers) else text
    digits = text.replace(",", "")
    try:
        return float(digits) if "." in digits else int(digits)
    except ValueError:
        return text
