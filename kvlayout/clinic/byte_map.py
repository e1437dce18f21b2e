"""A fingerprint of the byte map: equal exactly where two maps put every coordinate at the same offset.

For a cache's key or a handshake: sizes and digests of tokens are the same in LBNHC and LBHNC, the bytes aren't.
"""

from __future__ import annotations

import hashlib

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.errors import check_type
from kvlayout.region import Region

_PREFIX = "kvmap1-"  # counts up if what is hashed ever changes


def fingerprint(address_map: AddressMap) -> str:
    """Return "kvmap1-" and 32 hex digits of what ``address_map`` says of every (layer, block, head, state, byte).

    Two maps have equal fingerprints where they have the same layer names, each with the same (B, H, N, C bytes), and
    each coordinate lies at the same byte offset. Layers count by name: in which order, in which tensors or in which
    groups the config lists them is the same map, and so is a stride of an axis of extent 1. Blocks are counted as the
    map counts them, so a map that is split into kernel blocks differs from the unsplit one. The allocation's size,
    padding and the fields' names are no part of it.
    Raises LayoutError unless ``address_map`` is an AddressMap.
    """
    check_type("address_map", address_map, AddressMap)
    inner = {id(region): _inner(region) for region in address_map.regions}
    digest = hashlib.sha256()
    for name, index in sorted((name, index) for index, name in enumerate(address_map.layers)):
        region = address_map.region(index)
        shape = region.geometry.shape[1:]
        digest.update(f"{name!r} {shape} ".encode())
        if 0 not in shape:
            first, rest = inner[id(region)]
            place = int(np.flatnonzero(region.layers == index)[0])
            start = region.geometry.offset + place * region.geometry.strides[0] + first
            step = region.geometry.strides[1] if shape[0] > 1 else 0
            digest.update(f"{start} {step} {rest}".encode())
        digest.update(b"\n")
    return _PREFIX + digest.hexdigest()[:32]


def _inner(region: Region) -> tuple[int, str]:
    """Return (offset inside the page of the first coordinate, what the offsets of the others are against it)."""
    _, _, *extents = region.geometry.shape
    strides = region.geometry.strides[2:]
    if 0 in extents or region.interior.scope == "state":
        return 0, _affine(extents, strides)
    # One page's table: an interior may be any permutation, and may also be a plain one that was declared so.
    grid = np.indices(extents, dtype=np.int64).reshape(3, -1)
    table = region.inner_offsets(*grid)
    first = int(table[0])
    table = table - first
    cube = table.reshape(extents)
    steps = [int(cube[tuple(int(a == axis) for a in range(3))]) if n > 1 else 0 for axis, n in enumerate(extents)]
    if (table == np.asarray(steps) @ grid).all():
        return first, _affine(extents, steps)
    return first, hashlib.sha256(table.astype("<i8").tobytes()).hexdigest()


def _affine(extents: list[int], strides: list[int]) -> str:
    """The strides in text, 0 for an axis that never moves."""
    return " ".join(str(int(stride) if n > 1 else 0) for n, stride in zip(extents, strides))
