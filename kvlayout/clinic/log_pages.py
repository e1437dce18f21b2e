"""Log lines about pages and views: block sizes of hybrids, padding, registered caches, a view out of its storage."""

from __future__ import annotations

import math
from fractions import Fraction

from kvlayout.clinic.log_subject import (
    AGREES,
    DIFFERS,
    IMPOSSIBLE,
    UNKNOWN,
    Answer,
    Subject,
    exact,
)
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.facts.hybrid import mamba_padding_percent
from kvlayout.rounding import ceil_div

_HYBRID_ONLY = "vLLM says this only of attention beside recurrent states, and there is no such pair of layers here."


def _token_bytes(subject: Subject) -> int:
    """Bytes of one token in the widest attention layer, padding aside."""
    return max(ceil_div(spec.unpadded_page_size_bytes, spec.block_size) for spec in subject.attention.values())


def _state_bytes(subject: Subject) -> int:
    return max(spec.unpadded_page_size_bytes for spec in subject.states.values())


def attention_block_size(values: dict, subject: Subject) -> Answer:
    """"Setting attention block size to N tokens to ensure that attention page size is >= mamba page size"."""
    name, tokens = "attention block size", values["tokens"]
    said = f"{tokens:,} tokens"
    sizes = sorted({spec.block_size for spec in subject.attention.values()})
    ours = " and ".join(f"{size:,}" for size in sizes) + " tokens" if sizes else "no attention"
    if not subject.states or not sizes:
        return Answer(name, said, ours, IMPOSSIBLE, _HYBRID_ONLY)
    if tokens in sizes:
        return Answer(name, said, ours, AGREES, f"{tokens:,} tokens × {_token_bytes(subject):,} bytes = "
                      f"{tokens * _token_bytes(subject):,}, at least the state's {_state_bytes(subject):,}.")
    page, state = tokens * _token_bytes(subject), _state_bytes(subject)
    if page < state:
        return Answer(name, said, ours, IMPOSSIBLE, f"{tokens:,} tokens × {_token_bytes(subject):,} bytes = "
                      f"{page:,}, less than the state's {state:,}: the page would not hold it.")
    return Answer(name, said, ours, DIFFERS, f"{tokens:,} tokens × {_token_bytes(subject):,} bytes = {page:,} would "
                  f"hold the state's {state:,} too, but ours has blocks of {ours}.")


def mamba_page_padding(values: dict, subject: Subject) -> Answer:
    """"Padding mamba page size by P% to ensure that mamba page size and attention page size are exactly equal"."""
    name, percent = "Mamba page padding", exact(values["percent"])
    said = f"{values['percent']}%"
    if not subject.states or not subject.attention:
        return Answer(name, said, "", IMPOSSIBLE, _HYBRID_ONLY)
    padded = mamba_padding_percent(subject.specs)
    spec = max(subject.states.values(), key=lambda one: Fraction(one.page_size_bytes, one.unpadded_page_size_bytes))
    state, page = spec.unpadded_page_size_bytes, spec.page_size_bytes
    ours = f"{padded:.2f}%"
    how = f"({page:,} / {state:,} − 1) × 100 = {padded:.2f}"
    if ours == f"{float(percent):.2f}%":
        return Answer(name, said, ours, AGREES, f"{how}.")
    token = _token_bytes(subject)
    half = Fraction(1, 200)
    first, last = (state * (1 + (percent + shift) / 100) / token for shift in (-half, half))
    if math.ceil(first) > math.floor(last):
        return Answer(name, said, ours, IMPOSSIBLE, f"{state:,} bytes and {values['percent']}% more are "
                      f"{float(first):.3f} to {float(last):.3f} tokens of {token:,} bytes, no whole number; {how}.")
    return Answer(name, said, ours, DIFFERS, f"It would be a page of {math.ceil(first):,} tokens of {token:,} bytes; "
                  f"{how}.")


def registered(values: dict, subject: Subject) -> Answer:
    """"Registering KV_Caches: use_mla: ..., num_blocks: ..., block_shape: ..., per_layer_kv_cache_shape: ..."."""
    name = "registered caches"
    uses_mla = any(getattr(spec, "head_size_v", None) == 0 for spec in subject.attention.values())
    parts = [f"use_mla {values['use_mla']}"]
    if "num_blocks" in values:
        parts.append(f"{values['num_blocks']:,} blocks")
    for key in ("block_shape", "per_layer_kv_cache_shape"):
        if key in values:
            parts.append(f"{key.replace('_kv_cache', '')} {values[key]}")
    said, ours = ", ".join(parts), f"use_mla {uses_mla}, {subject.num_blocks:,} blocks"
    if values["use_mla"] != uses_mla:
        kind = "keep latents" if uses_mla else "keep K and V, no latents"
        return Answer(name, said, ours, IMPOSSIBLE, f"The layers {kind}, so use_mla would be {uses_mla}.")
    layer, spec = next(iter(subject.attention.items()), (None, None))
    if spec is None:
        return Answer(name, said, ours, UNKNOWN, "There is no attention layer whose blocks could be compared.")
    shape = values.get("per_layer_kv_cache_shape")
    blocks = values.get("num_blocks")
    block = values.get("block_shape")
    if shape is not None and blocks is not None and blocks not in shape:
        return Answer(name, said, ours, IMPOSSIBLE, f"No axis of {shape} has the {blocks:,} blocks of the same line.")
    if wrong := _wrong_block(spec, shape, blocks, block, subject.shape(layer)):
        return Answer(name, said, ours, IMPOSSIBLE, wrong)
    counts = {subject.num_blocks} | ({subject.shape(layer)[0]} if subject.shape(layer) else set())
    if blocks is not None and blocks not in counts:
        return Answer(name, said, ours, DIFFERS, f"The block's size fits; the line has {blocks:,} blocks, ours "
                      f"{' or '.join(f'{count:,}' for count in sorted(counts))}.")
    why = f"The layers' attention is as the line says, use_mla {uses_mla}."
    if block or shape:
        why = f"A page of {layer} is {spec.unpadded_page_size_bytes:,} bytes, which the shapes hold."
    return Answer(name, said, ours, AGREES, why)


def _wrong_block(spec, shape, blocks, block, view) -> str | None:
    """Why the shapes of a registration can't be this layer's, or None."""
    item = dtype_size_bytes(spec.dtype)
    pages = {spec.unpadded_page_size_bytes} | ({math.prod(view[1:])} if view else set())
    known = " or ".join(f"{page:,}" for page in sorted(pages))
    if shape is not None and blocks:
        page, left = divmod(math.prod(shape), blocks)
        if left or page * item not in pages:
            return (f"{shape} holds {math.prod(shape):,} elements / {blocks:,} blocks × {item} bytes = "
                    f"{math.prod(shape) * item // blocks:,} bytes a block, and a page has {known}.")
    if block is not None:
        size = math.prod(block) * item
        # K and V apart: a block's shape then counts one of them.
        if size not in pages and 2 * size not in pages:
            return f"{block} is {size:,} bytes, or {2 * size:,} with V, and a page has {known}."
    return None


def storage_bounds(values: dict, subject: Subject) -> Answer:
    """"setStorage: sizes ..., strides ... are out of bounds for storage of size Y"."""
    name, storage = "view out of its storage", values["storage_bytes"]
    said, size = f"storage of {storage:,} bytes", subject.config.size_bytes
    ours = f"an allocation of {size:,} bytes"
    arithmetic = ""
    if "sizes" in values:
        sizes, strides, item = values["sizes"], values["strides"], values["itemsize"]
        if len(sizes) != len(strides):
            return Answer(name, said, ours, IMPOSSIBLE,
                          f"{len(sizes)} sizes and {len(strides)} strides make no view.")
        last = values["storage_offset"] + sum((count - 1) * step for count, step in zip(sizes, strides))
        needed = 0 if 0 in sizes else (last + 1) * item
        arithmetic = f"The view needs ({last:,} + 1) × {item} = {needed:,} bytes"
        if needed != values["required_bytes"]:
            return Answer(name, said, ours, IMPOSSIBLE, f"{arithmetic}, not {values['required_bytes']:,}: the sizes "
                          "or strides aren't those of the error.")
        if needed <= storage:
            return Answer(name, said, ours, IMPOSSIBLE, f"{arithmetic}, which {storage:,} hold: no error then.")
        arithmetic += f", {needed - storage:,} more than there are; "
    if storage == size:
        return Answer(name, said, ours, AGREES, f"{arithmetic}the storage is the whole allocation of {size:,} bytes.")
    each = subject.bytes_per_block
    verdict, pages = DIFFERS, sorted({spec.page_size_bytes for spec in subject.specs.values()} - {0})
    # Before 0.29 every layer had a storage of its own.
    page = next((page for page in pages if storage and storage % page == 0), None)
    if each and storage % each == 0:
        blocks = f" ({storage // each:,} blocks of {each:,} bytes)"
    elif page:
        blocks = f" ({storage // page:,} pages of one layer, {page:,} bytes each)"
    else:
        blocks = f", no whole number of blocks of {each:,} bytes" if each else ""
        verdict = IMPOSSIBLE if pages else DIFFERS
    return Answer(name, said, ours, verdict, f"{arithmetic}the storage has {storage:,} bytes{blocks}; ours {size:,}.")
