"""The names that an offset formula may use, in one table, and their values for one layer.

``block`` and ``token`` count as the address map does: kernel blocks where those split a block, states where a state
holds several tokens. Indices are open int64 arrays [block, head, token, element], so a formula costs little until
it joins them; sizes and strides are plain ints.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.geometry import view_dtype
from kvlayout.region import Region

AXES = ("layer", "block", "head", "token", "element")

# name: (unit, what it is)
NAMES = {
    "layer": ("index", "the layer, as the address map counts all layers"),
    "block": ("index", "the block of the layer's view; a kernel block where those split the manager's"),
    "head": ("index", "the head slot"),
    "token": ("index", "the token state inside the block"),
    "element": ("index", "the element inside a state's content (K, then V, then what else it holds)"),
    "slot": ("index", "block * num_states + token, as in slot_mapping"),
    "manager_block": ("index", "block // kernel_blocks_per_block"),
    "tensor_layer": ("index", "the layer inside its tensor"),
    "layer_offset": ("bytes", "the layer's first byte: tensor_offset + tensor_layer * layer_stride"),
    "tensor_offset": ("bytes", "first byte of the tensor that holds the layer"),
    "layer_stride": ("bytes", "from layer to layer inside the tensor"),
    "block_stride": ("bytes", "from block to block of one layer, past the layers between them"),
    "manager_block_stride": ("bytes", "from manager block to manager block: block_stride * kernel_blocks_per_block"),
    "head_stride": ("bytes", "from head slot to head slot"),
    "state_stride": ("bytes", "from token state to token state"),
    "element_stride": ("bytes", "from element to element"),
    "byte_stride": ("bytes", "from byte to byte of a state's content; 1 in all of vLLM's layouts"),
    "element_size": ("bytes", "one element of the cache's dtype; 1 where the content isn't whole elements"),
    "content_bytes": ("bytes", "one state of one head slot, K and V together (C)"),
    "page_content_bytes": ("bytes", "one block of one layer without padding"),
    "page_bytes": ("bytes", "one block of one layer with its padding"),
    "size_bytes": ("bytes", "the allocation"),
    "num_layers": ("count", "layers of the tensor that holds the layer"),
    "num_blocks": ("count", "blocks of the layer's view; kernel blocks where those split"),
    "num_heads": ("count", "head slots (H)"),
    "num_states": ("count", "token states a block (N); tokens a block where each has its state"),
    "num_elements": ("count", "elements of one state's content"),
    "half_elements": ("count", "half of num_elements: those of K where V is as long"),
    "kernel_blocks_per_block": ("count", "kernel blocks in a block of the manager; 1 where those don't split"),
    "inner_offset": ("bytes", "from the page's first byte to this head, token and element, as it really is"),
    "field_offset": ("bytes", "from the page's first byte (a head slot's, where fields are laid out head by head) to "
                              "this element in state 0"),
    "field_state_stride": ("bytes", "from state to state of the field that holds the element"),
    "field_head_stride": ("bytes", "from head slot to head slot of that field"),
    "field_begin": ("bytes", "where that field begins inside a state's content"),
    "field_bytes": ("bytes", "that field's size in one state"),
}

# Which indices a name stands for; the others are the same at every coordinate of a layer.
AXES_OF = {
    **{name: (name,) for name in AXES}, "slot": ("block", "token"), "manager_block": ("block",),
    "tensor_layer": ("layer",), "layer_offset": ("layer",),
    **{name: ("element",) for name in NAMES if "field" in name},
}


def item_bytes(region: Region) -> int:
    """Return the bytes of one element: the dtype's, or 1 where a state's content isn't whole elements."""
    size = dtype_size_bytes(view_dtype(region.spec))
    return size if region.geometry.shape[4] % size == 0 else 1


def kernel_blocks_per_block(address_map: AddressMap, region: Region) -> int:
    """Return into how many blocks the map splits one block of the manager."""
    return max(1, region.geometry.shape[1] // max(1, address_map.config.num_blocks))


def layer_values(address_map: AddressMap, layer: int, axes: tuple[np.ndarray, ...],
                 wanted: Collection[str]) -> dict[str, object]:
    """Return the ``wanted`` names' values for one layer at the mesh of ``axes`` (block, head, token, element)."""
    region = address_map.region(layer)
    local = region.layers.tolist().index(layer)
    (layers, blocks, heads, states, content), strides = region.geometry.shape, region.geometry.strides
    item, ratio = item_bytes(region), kernel_blocks_per_block(address_map, region)
    block, head, token, element = open_mesh(axes)
    found = {
        "layer": layer, "block": block, "head": head, "token": token, "element": element,
        "slot": block * states + token, "manager_block": block // ratio, "tensor_layer": local,
        "layer_offset": region.geometry.offset + local * strides[0], "tensor_offset": region.geometry.offset,
        "layer_stride": strides[0], "block_stride": strides[1], "manager_block_stride": strides[1] * ratio,
        "head_stride": strides[2], "state_stride": strides[3], "element_stride": strides[4] * item,
        "byte_stride": strides[4], "element_size": item, "content_bytes": content,
        "page_content_bytes": heads * states * content, "page_bytes": region.page_size_bytes,
        "size_bytes": address_map.size_bytes, "num_layers": layers, "num_blocks": blocks, "num_heads": heads,
        "num_states": states, "num_elements": content // item, "half_elements": max(1, content // item // 2),
        "kernel_blocks_per_block": ratio,
    }
    if "inner_offset" in wanted:
        found["inner_offset"] = _inner(region, axes)
    if any(name not in found for name in wanted):
        found.update(_field_values(region, axes[1], axes[3], item))
    return {name: found[name] for name in wanted}


def open_mesh(axes: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return each axis' indices as an array of as many axes, which nobody may write to."""
    mesh = np.ix_(*axes)
    for one in mesh:
        one.setflags(write=False)
    return mesh


def truth(region: Region, layer: int, axes: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the byte offset of each element's first byte, broadcasting to [block, head, token, element]."""
    block = open_mesh(axes)[0]
    page = region.geometry.offset + region.layers.tolist().index(layer) * region.geometry.strides[0]
    return page + block * region.geometry.strides[1] + _inner(region, axes)


def _inner(region: Region, axes: tuple[np.ndarray, ...]) -> np.ndarray:
    """Bytes from the page's first byte to each element's, as an array [1, head, token, element]."""
    _, head, token, element = open_mesh(axes)
    byte = element * item_bytes(region)
    if region.interior.scope == "state":
        return region.inner_offsets(head, token, byte)
    mesh = np.broadcast_arrays(head, token, byte)
    return region.inner_offsets(*(one.ravel() for one in mesh)).reshape(mesh[0].shape)


def _field_values(region: Region, heads: np.ndarray, elements: np.ndarray, item: int) -> dict[str, np.ndarray]:
    """As arrays [1, head, 1, element]."""
    names = ("field_offset", "field_state_stride", "field_head_stride", "field_begin", "field_bytes")
    table = np.zeros((len(names), 1, len(heads), 1, len(elements)), dtype=np.int64)
    _, _, head_stride, state_stride, byte_stride = region.geometry.strides
    byte = elements * item
    for row, head in enumerate(heads.tolist()):
        for begin, field in region.interior.slot_fields(head):
            here = (byte >= begin) & (byte < begin + field.size_bytes)
            if region.interior.scope == "state":
                values = (byte[here] * byte_stride, state_stride, head_stride)
            else:
                piece, rest = np.divmod(byte[here] - begin, field.unit[0])
                first = field.slots[0] if field.slots else 0
                inner = field.offset + piece * field.unit[1] + rest
                # A cell is a head slot's own, so its slots lie as the view has them.
                values = ((inner, field.state_stride, head_stride) if region.interior.scope == "cell" else
                          (inner - first * field.head_stride, field.state_stride, field.head_stride))
            for index, value in enumerate((*values, begin, field.size_bytes)):
                table[index, 0, row, 0, here] = value
    table.setflags(write=False)
    return dict(zip(names, table))
