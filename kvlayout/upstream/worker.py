"""Functions that run inside a vLLM worker, given the worker of ``collective_rpc``; they return plain data.

Source of the names: vLLM 0.29.0 to 0.33.0, ``gpu_model_runner.py`` and ``cpu_model_runner.py`` (V1 model runner) and
``gpu/model_runner.py`` (V2) in ``vllm/v1/worker``; only 0.32.0's V1 runner on the CPU was run.
"""

from __future__ import annotations

import os
from dataclasses import replace

from kvlayout.capture.dump import Place, RankDump, RankView, is_known_backend
from kvlayout.capture.objects import as_config
from kvlayout.config import KVCacheConfig
from kvlayout.errors import LayoutError
from kvlayout.facts.machine import CPU_ISAS, PLATFORMS, Machine
from kvlayout.spec import EncoderOnlyAttentionSpec


def read_rank(worker: object) -> dict:
    """Return what this rank holds, as :meth:`RankDump.to_dict` gives it."""
    return rank_dump(worker).to_dict()


def rank_dump(worker: object) -> RankDump:
    """Return what this rank holds; LayoutError naming what this vLLM lacks, or that no cache is there yet."""
    runner = model_runner(worker)
    theirs = getattr(runner, "kv_cache_config", None)
    if theirs is None:
        raise LayoutError("model_runner", type(runner).__name__, "has no KV cache yet, or none any more",
                          "Read it after the engine has started and before it is shut down")
    config, layers = own_config(as_config(theirs)), _layers(runner)
    sizes = getattr(runner, "_kernel_block_sizes", None) or getattr(runner, "kernel_block_sizes", None)
    if sizes is None:
        sizes = [group.kv_cache_spec.block_size for group in config.kv_cache_groups]
    names = [name for group in config.kv_cache_groups for name in group.layer_names]
    missing = [name for name in names if name not in layers]
    if missing:
        raise LayoutError("static_forward_context", missing, "are layers of the KV cache config that vLLM's forward "
                          "context lacks")
    served = [one for group in getattr(runner, "attn_groups", []) for one in group]
    backends = {name: _backend_name(one.backend) for one in served for name in one.layer_names if name in names}
    remapped = tuple(name for one in served if getattr(one, "kernel_block_size", None) is not None
                     for name in one.layer_names if name in names)
    shared = {name: layer.kv_sharing_target_layer_name for name, layer in layers.items()
              if getattr(layer, "kv_sharing_target_layer_name", None) is not None}
    layout_names = {"cache_config": getattr(runner.vllm_config.cache_config, "kv_cache_layout", None),
                    "kv_cache_config": getattr(theirs, "kv_cache_layout", None)}
    if config.kv_cache_layout is None:
        config = replace(config, kv_cache_layout=layout_names["cache_config"])
    return RankDump(
        _place(worker, runner.vllm_config), _version(), layout_names, config,
        tuple(int(size) for size in sizes[:len(config.kv_cache_groups)]), backends,
        _machine(runner.vllm_config, [layers[name] for name in names]),
        {name: tuple(_view(one) for one in _tensors(layers[name])) for name in names}, shared, remapped)


def own_config(config: KVCacheConfig) -> KVCacheConfig:
    """Return ``config`` without what the model runner adds to it: encoder-only groups, and layers in no tensor.

    Source: ``may_add_encoder_only_layers_to_kv_cache_config``, which appends its groups, and
    ``add_kv_sharing_layers_to_kv_cache_groups``.
    """
    stored = {name for tensor in config.kv_cache_tensors for name in tensor.layers}
    groups = tuple(replace(group, layer_names=tuple(name for name in group.layer_names if name in stored))
                   for group in config.kv_cache_groups
                   if not isinstance(group.kv_cache_spec, EncoderOnlyAttentionSpec))
    return replace(config, kv_cache_groups=groups)


def model_runner(worker: object) -> object:
    """Return the worker's model runner; LayoutError where there is none."""
    runner = getattr(worker, "model_runner", None)
    if runner is None or not hasattr(runner, "vllm_config"):
        raise LayoutError("worker", type(worker).__name__, "has no model runner of vLLM's",
                          "Attach to an engine of vLLM 0.29 or newer")
    return runner


def rank_tensors(worker: object) -> dict:
    """Return {layer: its tensor, or list of state tensors}: the engine's own, not copies. In process only."""
    runner = model_runner(worker)
    layers = _layers(runner)
    names = own_config(as_config(runner.kv_cache_config)).layer_specs
    return {name: layers[name].kv_cache for name in names}


def rank_buffer(worker: object) -> object:
    """Return the one allocation of all views as a flat int8 tensor; LayoutError where there are several, or none."""
    import torch

    runner = model_runner(worker)
    size = as_config(runner.kv_cache_config).size_bytes
    tensors = [one for value in rank_tensors(worker).values() for one in (value if isinstance(value, (list, tuple))
                                                                          else [value])]
    storages = {one.untyped_storage().data_ptr(): one for one in tensors if one.numel()}
    if len(storages) != 1:
        raise LayoutError("kv_caches", len(storages), "allocations hold the views; there must be one",
                          "Only caches in one backing allocation can be watched")
    one = next(iter(storages.values()))
    whole = torch.empty(0, dtype=torch.int8, device=one.device).set_(one.untyped_storage())
    return whole[:size]  # ROCm's allocation has a tail


def snapshot_rank(worker: object, most_bytes: int | None = None, granule_bytes: int | None = None) -> dict:
    """Return a snapshot of this rank's cache as :meth:`kvlayout.snapshot.Snapshot.to_dict` gives it."""
    return take(rank_buffer(worker), most_bytes, granule_bytes).to_dict()


def take(buffer: object, most_bytes: int | None, granule_bytes: int | None) -> object:
    """Return the Snapshot of a buffer once the device has done all work on it."""
    import torch

    from kvlayout.memory.snapshot import MOST_BYTES, take_snapshot
    from kvlayout.snapshot import GRANULE_BYTES

    if buffer.device.type != "cpu":
        torch.accelerator.synchronize(buffer.device)
    return take_snapshot(buffer, most_bytes=MOST_BYTES if most_bytes is None else most_bytes,
                         granule_bytes=GRANULE_BYTES if granule_bytes is None else granule_bytes)


def _layers(runner: object) -> dict[str, object]:
    return runner.vllm_config.compilation_config.static_forward_context


def _tensors(layer: object) -> list:
    value = layer.kv_cache
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _view(tensor: object) -> RankView:
    storage = tensor.untyped_storage()
    return RankView(tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch."),
                    tensor.data_ptr(), storage.data_ptr(), storage.nbytes(), str(tensor.device))


def _backend_name(backend: object) -> str:
    """The backend's own name where the catalogue has it, else its class path."""
    path = f"{backend.__module__}.{backend.__qualname__}"
    for name in (backend.get_name(), path):
        if is_known_backend(name, _version()):
            return name
    return path


def _place(worker: object, vllm_config: object) -> Place:
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tp, pp = get_tp_group(), get_pp_group()
    return Place(int(worker.rank), tp.rank_in_group, tp.world_size, pp.rank_in_group, pp.world_size,
                 int(vllm_config.parallel_config.world_size), os.getpid())


def _machine(vllm_config: object, layers: list) -> Machine:
    """What the backends could ask about; CPU_ATTN leaves its instruction set on each layer.

    Source: ``CPUAttentionMetadataBuilder._set_isa_to_layers``.
    """
    import torch
    from vllm.platforms import current_platform

    platform = next((name for name in PLATFORMS if getattr(current_platform, f"is_{name}")()), "cpu")
    isa = next((layer.isa for layer in layers if getattr(layer, "isa", None) in CPU_ISAS), "vec")
    major = torch.cuda.get_device_capability()[0] if platform == "cuda" else None
    return Machine(platform=platform, cuda_major=major, cpu_isa=isa,
                   kv_connector=getattr(vllm_config, "kv_transfer_config", None) is not None)


def _version() -> str:
    import vllm

    return vllm.__version__
