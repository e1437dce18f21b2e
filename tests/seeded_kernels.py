"""Kernels by formula: the right one, and the classic mistakes, each as a writer, as a reader, and as plain numbers.

A formula gives elements from the view's first one to (slot, head, element of C), of facts that a kernel has at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch

from kvlayout.bench.case import Case
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.geometry import layer_views


def right(f, slot, head, element):
    return slot // f.states * f.block + head * f.head + slot % f.states * f.state + element


def flat_slot(f, slot, head, element):
    """slot x row, as if one page followed the other and nothing lay between them."""
    return slot * f.heads * f.content + head * f.content + element


def heads_outside_states(f, slot, head, element):
    """A page [N, H, C] taken for [H, N, C]."""
    return slot // f.states * f.block + head * f.states * f.content + slot % f.states * f.content + element


def states_outside_heads(f, slot, head, element):
    """A page [H, N, C] taken for [N, H, C]."""
    return slot // f.states * f.block + slot % f.states * f.heads * f.content + head * f.content + element


def block_size_of_heads(f, slot, head, element):
    """The block size taken from the axis of heads."""
    return slot // f.heads * f.block + head * f.head + slot % f.heads * f.state + element


def manager_blocks(f, slot, head, element):
    """A slot decoded with the manager's 16 tokens a block, and multiplied by the kernel block's stride."""
    return slot // 16 * f.block + head * f.head + slot % 16 * f.state + element


def manager_stride(f, slot, head, element):
    """A kernel block's id multiplied by the stride of the manager's block of 16 tokens."""
    block = slot // f.states * f.block * 16 // f.states
    return block + head * f.head + slot % f.states * f.state + element


def page_of_block_stride(f, slot, head, element):
    """The page's length taken from the block stride, and its heads spread over it."""
    return slot // f.states * f.block + head * (f.block // f.heads) + slot % f.states * f.state + element


def int32_product(f, slot, head, element):
    """The right offset in 32 bits."""
    return right(f, slot, head, element).astype(np.int32).astype(np.int64)


def int32_bytes(f, slot, head, element):
    """The right offset in bytes, in 32 bits."""
    return (right(f, slot, head, element) * f.item).astype(np.int32).astype(np.int64) // f.item


def layer_planes(f, slot, head, element):
    """A layer as a plane of K, then one of V, where K and V of a state lie side by side."""
    start = (slot // f.states * f.block + head * f.head + slot % f.states * f.state) // 2
    return start + np.where(element < f.key, element, f.blocks * f.block // 2 + element - f.key)


def value_plane(f, slot, head, element):
    """Each page as a plane of K, then one of V, where K and V of a state lie side by side."""
    row, block = slot % f.states, slot // f.states * f.block
    key = (head * f.states + row) * f.key + element
    value = f.heads * f.states * f.key + (head * f.states + row) * f.value + element - f.key
    return block + np.where(element < f.key, key, value)


def scales_beside(f, slot, head, element):
    """Rows of 128 values and their scale."""
    return slot // f.states * f.block + slot % f.states * 132 + element


def scales_at_tail(f, slot, head, element):
    """All states' 128 values, then all states' scales of 4 bytes."""
    row = slot % f.states
    return slot // f.states * f.block + np.where(element < 128, row * 128 + element,
                                                 f.states * 128 + row * 4 + element - 128)


def addresses(formula: Callable, view, key: int, value: int, slots: np.ndarray) -> np.ndarray:
    """[tokens, heads, C] elements from the view's first, of a view given by ``shape``, ``stride`` and ``item``."""
    facts = SimpleNamespace(block=view.stride[0], head=view.stride[1], state=view.stride[2], heads=view.shape[1],
                            states=view.shape[2], content=view.shape[3], key=key, value=value,
                            blocks=view.shape[0], item=view.item)
    return formula(facts, slots[:, None, None], np.arange(view.shape[1])[:, None], np.arange(view.shape[3]))


def _of(kv_cache: torch.Tensor) -> tuple[SimpleNamespace, torch.Tensor, int]:
    """The view's numbers, its whole storage as one row of elements, and where the view begins there."""
    length = kv_cache.untyped_storage().nbytes() // kv_cache.element_size()
    memory = kv_cache.as_strided((length,), (1,), 0)
    view = SimpleNamespace(shape=kv_cache.shape, stride=kv_cache.stride(), item=kv_cache.element_size())
    return view, memory, kv_cache.storage_offset()


def writer(formula: Callable):
    def write(key, value, kv_cache, slot_mapping):
        view, memory, start = _of(kv_cache)
        kept = slot_mapping >= 0
        at = addresses(formula, view, key.shape[2], value.shape[2], slot_mapping[kept].numpy())
        memory[torch.from_numpy(start + at)] = torch.cat([key[:len(kept)][kept], value[:len(kept)][kept]], dim=2)
    return write


def reader(formula: Callable, stays: bool = False):
    """``stays``: what lies behind a request's end is read from the view's first element, and never out of memory."""
    def read(kv_cache, block_table, seq_lens, head_size):
        view, memory, start = _of(kv_cache)
        position = np.arange(int(seq_lens.max()))
        # Behind a request's end the table may say anything; it is read all the same, as a real kernel's tile is.
        blocks = block_table.numpy()[:, position // view.shape[2]].astype(np.int64)
        slots = blocks * view.shape[2] + position % view.shape[2]
        at = addresses(formula, view, head_size, view.shape[3] - head_size, slots.ravel())
        if stays:
            at[(position >= seq_lens.numpy()[:, None]).ravel()] = 0
        found = memory[torch.from_numpy(start + at)].unflatten(0, slots.shape)
        return found[..., :head_size], found[..., head_size:]
    return read


def is_wrong(formula: Callable, case: Case, slots: np.ndarray, truth: Callable = right) -> bool:
    """Whether the formula errs for any of the slots, by arithmetic alone."""
    region = case.address_map.region(case.layer)
    planned = next(one for one in layer_views(region.geometry, region.tensor.layers, case.spec.dtype,
                                              case.address_map.size_bytes) if one.layer == case.layer)
    view = SimpleNamespace(shape=planned.shape, stride=planned.stride_elements,
                           item=dtype_size_bytes(case.spec.dtype))
    key, value = (side.width for side in case.sides)
    return not np.array_equal(*(addresses(one, view, key, value, slots) for one in (formula, truth)))
