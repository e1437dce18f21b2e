"""Element types by their torch names, without importing torch."""

from __future__ import annotations

from kvlayout.errors import LayoutError

ITEM_SIZE_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
    "float32": 4, "int32": 4, "uint32": 4, "float64": 8, "int64": 8, "uint64": 8,
}


def dtype_name(dtype: object, argument: str = "dtype") -> str:
    """Return the torch name of a dtype given as text or as a ``torch.dtype``; LayoutError for an unknown one."""
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_SIZE_BYTES:
        raise LayoutError(argument, dtype, "is not a known element type",
                          f"Use one of {', '.join(ITEM_SIZE_BYTES)}, or the torch.dtype of that name")
    return name


def dtype_size_bytes(dtype: object) -> int:
    """Return the size in bytes of one element of ``dtype``."""
    return ITEM_SIZE_BYTES[dtype_name(dtype)]
