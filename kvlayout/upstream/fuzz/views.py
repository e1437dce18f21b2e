"""The torch view of each layer over a real buffer: shape, strides, storage offset, element type, and the refusals."""

from __future__ import annotations

from functools import cache
from random import Random

from kvlayout.config import KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.geometry import tensor_geometry
from kvlayout.spec_io import spec_from_dict
from kvlayout.strides import compute_layout_strides
from kvlayout.upstream.fuzz import theirs
from kvlayout.upstream.fuzz.draw import LAYOUTS, any_spec, chance, layer_names
from kvlayout.upstream.fuzz.kind import Kind, World
from kvlayout.upstream.fuzz.strides import kernel_block_size

LARGEST = 1 << 28  # bytes of the one CPU buffer, which is never touched


def ask(rng: Random, world: World) -> dict:
    spec = any_spec(rng, world)
    if chance(rng, 0.6):  # repacked and padded pages are mostly no whole number of elements
        spec = {name: value for name, value in spec.items()
                if name not in ("page_size_padded", "state_content_bytes", "alignment")}
    question = {"spec": spec, "num_blocks": rng.choice((0, 1, 2, 3, 7, 64)) if chance(rng, 0.9) else 5,
                "layers": rng.choice((1, 1, 2, 3, 5)), "layout": rng.choice(LAYOUTS),
                "kernel_block_size": kernel_block_size(rng, spec), "layer_stride": 1, "block_stride": 1, "size": 0,
                "offset": rng.choice((0, 0, 0, 256, 4096, 4)) if chance(rng, 0.95) else rng.randrange(100)}
    _place(rng, question)
    return question


def _place(rng: Random, question: dict) -> None:
    """Set the strides as placement does, or one of them at will, and the buffer's size, mostly large enough."""
    layout, layers = question["layout"], question["layers"]
    try:
        spec = spec_from_dict(question["spec"])
        pinned = None
        if layout[0] == "B":
            pinned = (spec.page_size_bytes * (layers + rng.choice((0, 0, 1)))) or None
        question["layer_stride"], question["block_stride"], *_ = compute_layout_strides(
            spec, question["num_blocks"], layers, layout, fixed_strides=(None, pinned, None, None, None))
    except LayoutError:
        return
    if chance(rng, 0.06):
        name = rng.choice(("layer_stride", "block_stride"))
        question[name] = max(0, question[name] + rng.choice((-4, -1, 2, 64, question[name])))
    try:
        end = tensor_geometry(spec, question["num_blocks"], layout, _tensor(question),
                              question["kernel_block_size"]).end
    except LayoutError:
        end = question["offset"] + spec.page_size_bytes * layers * question["num_blocks"]
    # A view that leaves a buffer on "meta" is no error there, so all buffers are real ones.
    question["size"] = max(0, end + rng.choice((0, 0, 0, 0, 1, 512, 1 << 20)) - (chance(rng, 0.04) and 1))


def _tensor(question: dict) -> KVCacheTensor:
    return KVCacheTensor(question["size"], layer_names(question["layers"]), question["layer_stride"],
                         question["block_stride"], question["offset"])


def is_too_large(question: dict, world: World) -> bool:
    return question["size"] > LARGEST


def _raw(size: int):
    """A buffer of ``size`` bytes with a storage of its own, so that leaving it is an error."""
    import torch

    return torch.frombuffer(_memory(), dtype=torch.int8, count=size) if size else torch.empty(0, dtype=torch.int8)


@cache
def _memory() -> bytearray:
    return bytearray(LARGEST)


def ours(question: dict, world: World) -> list[dict]:
    from kvlayout.memory.cache import create_kv_cache_views

    return _facts(create_kv_cache_views(_raw(question["size"]), spec_from_dict(question["spec"]),
                                        question["num_blocks"], question["layout"], _tensor(question),
                                        question["kernel_block_size"]))


def their_answer(question: dict, world: World) -> list[dict]:
    module = theirs.interface()
    tensor = module.KVCacheTensor(size=question["size"], layers=layer_names(question["layers"]),
                                  layer_stride=question["layer_stride"], block_stride=question["block_stride"],
                                  offset=question["offset"])
    return _facts(module.create_kv_cache_views(
        _raw(question["size"]), theirs.spec(question["spec"]), question["num_blocks"],
        theirs.layout(question["layout"]), tensor, question["kernel_block_size"]))


def _facts(views: list) -> list[dict]:
    return [{"shape": list(view.shape), "stride_elements": list(view.stride()),
             "storage_offset_elements": view.storage_offset(), "dtype": str(view.dtype)} for view in views]


KIND = Kind("views", "create_kv_cache_views over a CPU buffer: shape, strides, storage offset, element type",
            f"buffers above {LARGEST:,} bytes; \"meta\" buffers, on which torch lets a view leave the buffer",
            ask, ours, their_answer, is_too_large)
