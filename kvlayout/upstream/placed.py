"""What lies where, by vLLM: shapes and byte strides of every tensor, and every layer's typed view.

Source: ``vllm/v1/kv_cache_interface.py``, 0.29.0 to 0.33.0.
"""

from __future__ import annotations

from kvlayout.errors import LayoutError
from kvlayout.geometry import layer_views, view_dtype
from kvlayout.plan import Plan
from kvlayout.strides import compute_layout_strides
from kvlayout.upstream.inputs import specs_of_group
from kvlayout.upstream.release import Release
from kvlayout.upstream.verdict import Check, compare, plain

NO_BLOCKS = "there is no block to address"
REFUSED = "refused"


def strides(plan: Plan, release: Release, config: object, layout: object, kernel_block_sizes: list[int]) -> Check:
    """Compare shape [L, B, H, N, C] and byte strides of every tensor of vLLM's ``config`` with the plan's.

    "dense": without pinned strides and without kernel blocks; "view": as views have them, the tensor's layer and
    block stride pinned, in kernel blocks.
    """
    if not config.num_blocks or not config.kv_cache_tensors:
        return Check("strides", None, reason=NO_BLOCKS)
    interface = release.interface
    ours, theirs = {}, {}
    for index, region in enumerate(sorted(plan.address_map.regions, key=lambda region: region.tensor_index)):
        place = f"kv_cache_tensors[{index}]"
        ours[place] = {"dense": _dense(plan, region), "shape": list(region.geometry.shape),
                       "strides": list(region.geometry.strides), "offset": region.geometry.offset}
    for index, tensor in enumerate(config.kv_cache_tensors):
        spec, kernel = _spec_of(config, tensor, kernel_block_sizes)
        shape = interface.compute_layer_kv_cache_shape_bytes(spec, config.num_blocks, kernel)
        # Kernel blocks divide the block evenly, so their distance is the block's divided by their number.
        block_stride = tensor.block_stride // (shape[0] // config.num_blocks)
        pinned = (tensor.layer_stride, block_stride, None, None, None)
        theirs[f"kv_cache_tensors[{index}]"] = {
            "dense": _refusal(lambda spec=spec, tensor=tensor: list(interface.compute_layout_strides(
                spec, config.num_blocks, len(tensor.layers), layout))),
            "shape": [len(tensor.layers), *shape],
            "strides": list(interface.compute_layout_strides(
                spec, config.num_blocks, len(tensor.layers), layout, kernel, pinned)),
            "offset": tensor.offset}
    return compare("strides", ours, theirs)


def views(plan: Plan, release: Release, config: object, layout: object, kernel_block_sizes: list[int]) -> Check:
    """Compare shape, strides and start (elements) and dtype of every layer's view with the plan's.

    Where both sides refuse to view a tensor, that is agreement: a dtype that its bytes aren't aligned for.
    """
    if not config.num_blocks or not config.kv_cache_tensors:
        return Check("views", None, reason=NO_BLOCKS)
    import torch

    size = config.kv_cache_tensors[0].size
    raw = torch.empty(size, dtype=torch.int8, device="meta")
    ours, theirs = {}, {}
    for region in plan.address_map.regions:
        layers = region.tensor.layers
        found = _refusal(lambda region=region, layers=layers: layer_views(
            region.geometry, layers, view_dtype(region.spec), plan.address_map.size_bytes))
        for index, name in enumerate(layers):
            ours[name] = found if found == REFUSED else {
                "shape": list(found[index].shape), "stride_elements": list(found[index].stride_elements),
                "storage_offset_elements": found[index].storage_offset_elements, "dtype": found[index].dtype}
    for tensor in config.kv_cache_tensors:
        spec, kernel = _spec_of(config, tensor, kernel_block_sizes)
        found = _refusal(lambda spec=spec, tensor=tensor, kernel=kernel: release.interface.create_kv_cache_views(
            raw, spec, config.num_blocks, layout, tensor, kernel))
        for index, name in enumerate(tensor.layers):
            theirs[name] = found if isinstance(found, str) else {
                "shape": list(found[index].shape), "stride_elements": list(found[index].stride()),
                "storage_offset_elements": found[index].storage_offset(), "dtype": plain(found[index].dtype)}
    both = [name for name, found in ours.items() if found == REFUSED == theirs.get(name)]
    reason = f"neither side can view {len(both)} layers in their dtype, {both[0]} first" if both else ""
    return compare("views", ours, theirs, reason)


def _refusal(ask) -> object:
    """Return the answer, or REFUSED where either side says that it can't be."""
    try:
        return ask()
    except (LayoutError, ValueError, AssertionError, RuntimeError):
        return REFUSED


def _dense(plan: Plan, region: object) -> object:
    return _refusal(lambda: list(compute_layout_strides(
        region.spec, plan.config.num_blocks, len(region.tensor.layers), plan.layout)))


def _spec_of(config: object, tensor: object, kernel_block_sizes: list[int]) -> tuple[object, int]:
    """Return a tensor's spec, and the kernel block size (tokens) of its group."""
    for group, size in zip(config.kv_cache_groups, kernel_block_sizes, strict=True):
        specs = specs_of_group(group)
        if tensor.layers[0] in specs:
            return specs[tensor.layers[0]], size
    raise LookupError(f"{tensor.layers[0]} is in no group")
