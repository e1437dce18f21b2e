"""Tensors in pasted text: shapes, strides, element types, whatever surrounds them. Nothing is evaluated.

Each list of numbers is named by the words before it: a shape opens a tensor, strides and what follows belong to it.
The patterns can't backtrack over long text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvlayout.dtypes import ITEM_SIZE_BYTES
from kvlayout.errors import LayoutError, check_type

_LIST = re.compile(r"[\[(]\s*+(\d{1,19}+(?:\s*+,\s*+\d{1,19}+){1,7}+)\s*+(?:,\s*+)?+[\])]")
_SINGLE_GAP = re.compile(r"[\s)\]}'\"`,>]*+[\[({\s]*+")
_WORDS = re.compile(
    r"(?P<byte_strides>byte[ _]?strides?|global_?strides?|strides? \(?(?:in )?bytes)"
    r"|(?P<strides>strides?)"
    r"|(?P<dims>\bglobal_?dims?|\bdims?\b|inner first)"
    r"|(?P<ignored>box_?dims?|element_?strides?|block_shape|\boffsets?\b|traversal)"
    r"|(?P<shape>per_layer_kv_cache_shape|shapes?|(?<!torch\.)\bsizes?\b)", re.IGNORECASE)
# Directly behind a shape; a call such as stride(0) is no list.
_ODD_STRIDES = re.compile(r"[^\[({\w]{0,20}(?:with\s{1,3})?strides?[^\[({\w]{0,12}"
                          r"([\[({][^\[\](){}]{0,200},[^\[\](){}]{0,200}[\])}])", re.IGNORECASE)
# "layers.0": ((...  and  layers.0: shape (...
_NAME = re.compile(r"[\"']([^\"'\s]{1,120})[\"']\s*+[:=]\s*+[^\"':=]{0,40}$"
                   r"|([A-Za-z_]\w{0,40}\.[\w.]{1,80}):\s*+(?:shape[ =:]{0,3})?[\[({\s]*+$")
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_DTYPE = re.compile(rf"\b(?:torch\.)?({'|'.join(sorted((*ITEM_SIZE_BYTES, *_SHORT), key=len, reverse=True))})\b")
_NUMBERS = {
    "itemsize": re.compile(r"item_?size[ =:]{1,3}(\d{1,3})\b"),
    "storage_offset": re.compile(r"storage_?\s?offset(?:\(\))?[ =:]{1,3}(\d{1,19})\b"),
    "required_bytes": re.compile(r"requiring a storage size of (\d{1,19})\b"),
    "storage_bytes": re.compile(r"storage of size (\d{1,19})\b"),
}
_NEAR, _BEFORE, _AFTER = 60, 200, 240  # characters of a list's surroundings that may say what it is
_SPACE = re.compile(r"\s+")
_MOST = 2**63 - 1


@dataclass(frozen=True)
class PastedTensor:
    """One tensor, as far as the text says it.

    Attributes:
        shape, strides: elements, outermost axis first, as torch gives them; strides None where they aren't said
        itemsize: bytes of one element; ``dtype`` its torch name; None where they aren't said
        name: the layer's name, "" without one
        kind: "tensor", "registered" (a connector's log line), "storage" (torch's bounds check) or "descriptor" (TMA:
            ``dims`` and ``byte_strides`` are then as pasted, inner axis first, and shape and strides stay empty)
        storage_offset: elements; ``required_bytes``, ``storage_bytes``: of torch's bounds check
        dims, byte_strides: of a TMA descriptor
        unread_strides: what stands where the strides belong and is no list of 2 to 8 numbers of at least 0, or ""
    """

    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    itemsize: int | None = None
    dtype: str | None = None
    name: str = ""
    kind: str = "tensor"
    storage_offset: int | None = None
    required_bytes: int | None = None
    storage_bytes: int | None = None
    dims: tuple[int, ...] = ()
    byte_strides: tuple[int, ...] = ()
    unread_strides: str = ""

    def check_strides(self) -> None:
        """Raise LayoutError where the text gives strides that can't be this shape's."""
        if self.unread_strides:
            raise LayoutError("strides", self.unread_strides, "must be whole numbers of at least 0",
                              f"Write {len(self.shape)} of them, or leave them out")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise LayoutError("strides", self.strides, f"have {len(self.strides)} entries, the shape "
                              f"{len(self.shape)}", "Write one for each axis, or leave them out")

    @property
    def sentence(self) -> str:
        """What was read, and how far a bounds check was missed."""
        what = f"{self.name}: " if self.name else ""
        if self.kind == "descriptor":
            return f"{what}TMA descriptor, dims {self.dims} inner first, byte strides {self.byte_strides}."
        strides = "without strides" if self.strides is None else f"strides {self.strides}"
        text = f"{what}shape {self.shape}, {strides}."
        if self.required_bytes is not None and self.storage_bytes is not None:
            text += (f" It needs {self.required_bytes:,} bytes of a storage of {self.storage_bytes:,}: "
                     f"{self.required_bytes - self.storage_bytes:,} too many.")
        return text


def parse_shapes(text: str) -> list[PastedTensor]:
    """Return the tensors that pasted text tells of, in its order; an empty list where it tells of none.

    Read are torch.Size([...]), shape and stride() lists, {"layer": ((shape), (strides))}, vLLM's "Registering
    KV_Caches" lines, torch's "setStorage ... out of bounds" and TMA descriptors.
    """
    check_type("text", text, str)
    lists = list(_LIST.finditer(text))
    found: list[PastedTensor] = []
    open_for, last_end, early_strides = None, 0, None
    for index, one in enumerate(lists):
        numbers = tuple(int(number) for number in one[1].split(","))
        if max(numbers) > _MOST:
            raise LayoutError("text", one[0], "holds a number that 63 bits don't")
        before = text[max(last_end, one.start() - _BEFORE):one.start()]
        behind_end = lists[index + 1].start() if index + 1 < len(lists) else len(text)
        behind = text[one.end():min(behind_end, one.end() + _AFTER)]
        kind, last_end = _kind(before, open_for, numbers, found), one.end()
        if kind == "strides" and open_for == "byte_strides":
            kind = "byte_strides"  # a descriptor has no others
        if kind == "shape":
            found.append(_opened(before, numbers))
            open_for = "strides"
            if early_strides is not None:
                found[-1], open_for = _with_strides(found[-1], early_strides)
            early_strides = None
        elif kind == "dims":
            found.append(PastedTensor(dims=numbers, kind="descriptor"))
            open_for = "byte_strides"
        elif kind == "strides" and open_for == "strides":
            found[-1], open_for = _with_strides(found[-1], numbers)
        elif kind == "byte_strides" and open_for == "byte_strides":
            found[-1], open_for = replace(found[-1], byte_strides=numbers), None
        else:
            early_strides = numbers if kind == "strides" else early_strides  # they may come before their shape
            continue
        found[-1] = _told(found[-1], before, behind)
    whole = [one for one in found if one.kind != "descriptor" or one.byte_strides]
    return whole or found


def _with_strides(tensor: PastedTensor, strides: tuple[int, ...]) -> tuple[PastedTensor, str | None]:
    """Return the tensor with strides, and "strides" where these can't be its own and better ones may follow."""
    return replace(tensor, strides=strides, unread_strides=""), (
        None if len(strides) == len(tensor.shape) else "strides")


def _kind(before: str, open_for: str | None, numbers: tuple[int, ...], found: list[PastedTensor]) -> str:
    """What a list of numbers is, by the last such word before it, or else by its place."""
    words = list(_WORDS.finditer(before[-_NEAR:]))
    if words:
        return words[-1].lastgroup  # "inner first" follows its own list; what names the next one comes after it
    # Two lists side by side are a shape and its strides, which end in the 1 of C; otherwise two shapes.
    if open_for == "strides" and found and len(numbers) == len(found[-1].shape) and numbers[-1] == 1 \
            and _SINGLE_GAP.fullmatch(before) and ":" not in before:
        return "strides"
    return "shape" if 3 <= len(numbers) <= 6 else "ignored"


def _opened(before: str, numbers: tuple[int, ...]) -> PastedTensor:
    name = _NAME.search(before)
    kind = "storage" if "setStorage" in before else "registered" if "per_layer_kv_cache_shape" in before else "tensor"
    layer = (name[1] or name[2]) if name and kind == "tensor" else ""
    return PastedTensor(numbers, name="" if _WORDS.fullmatch(layer) else layer, kind=kind)


def _told(tensor: PastedTensor, before: str, behind: str) -> PastedTensor:
    """Add the element type and the numbers of a bounds check that the surroundings tell."""
    line = behind.split("\n", 1)[0] if tensor.kind != "storage" else behind
    dtype = _DTYPE.search(line) or _DTYPE.search(before.rsplit("\n", 1)[-1])
    if dtype and tensor.dtype is None:
        name = _SHORT.get(dtype[1], dtype[1])
        tensor = replace(tensor, dtype=name, itemsize=ITEM_SIZE_BYTES[name])
    told = _SPACE.sub(" ", line)
    odd = _ODD_STRIDES.match(behind) if tensor.kind != "descriptor" and tensor.strides is None else None
    if odd and _LIST.fullmatch(odd[1]) is None:
        tensor = replace(tensor, unread_strides=odd[1])
    for field, pattern in _NUMBERS.items():
        number = pattern.search(told)
        if number and getattr(tensor, field) is None and int(number[1]) <= _MOST:
            tensor = replace(tensor, **{field: int(number[1])})
    return tensor
