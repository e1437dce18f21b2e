"""Kernel blocks: the common size of random backends, and the sizes of all groups of a random config."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.kernel_blocks import AttentionGroup, prepare_kernel_block_sizes, select_common_block_size
from kvlayout.spec import KVQuantMode, MultipleOf
from kvlayout.spec_io import spec_from_dict
from kvlayout.upstream.fuzz import theirs
from kvlayout.upstream.fuzz.draw import any_spec, attention_spec, chance, layer_names
from kvlayout.upstream.fuzz.draw_layers import is_possible
from kvlayout.upstream.fuzz.kind import Kind, World

SIZES = (16, 16, 32, 64, 128, 8, 1, 48, 256)


def ask(rng: Random, world: World) -> dict:
    if chance(rng, 0.5):
        return {"call": "select_common_block_size", "block_size": rng.choice((1, 16, 32, 48, 64, 128, 256, 528)),
                "backends": [_sizes(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))]}
    groups, count = [], 0
    for _ in range(rng.randint(1, 3)):
        names = layer_names(rng.randint(1, 3), count)
        count += len(names)
        size = rng.choice((1, 16, 32, 64, 128, 256, 528))
        spec = _group_spec(rng, world, size, names)
        groups.append({"layer_names": names, "spec": spec, "backends": [
            {"sizes": _sizes(rng), "sizes_of_quantised": _sizes(rng) if chance(rng, 0.2) else None,
             "quantised": chance(rng, 0.5)} for _ in range(rng.choice((1, 1, 2)))]})
    tensors = [{"layers": group["layer_names"], "layer_stride": rng.choice((1000, 4096)),
                "block_stride": rng.choice((1000, 4096))} for group in groups]
    return {"call": "prepare_kernel_block_sizes", "groups": groups, "tensors": tensors}


def _sizes(rng: Random) -> list:
    """What one backend takes: exact sizes, or multiples."""
    if chance(rng, 0.4):
        return [{"multiple_of": rng.choice((1, 1, 8, 16, 16, 32, 64, 128))}]
    sizes = rng.sample(SIZES, rng.choice((1, 2, 3)))
    return [*sizes, {"multiple_of": 64}] if chance(rng, 0.15) else sizes


def _group_spec(rng: Random, world: World, size: int, names: list[str]) -> dict:
    spec = {}
    while not spec or not is_possible(spec):
        spec = attention_spec(rng, world, "EncoderOnlyAttentionSpec", block_size=size) if chance(rng, 0.05) \
            else any_spec(rng, world, block_size=size)
    if chance(rng, 0.3):
        return {"type": "UniformTypeKVCacheSpecs", "block_size": size, "kv_cache_specs": dict.fromkeys(names, spec)}
    return spec


class Backend:
    """A backend that takes other sizes for a quantised spec, as some of vLLM's do."""

    def __init__(self, sizes: list, sizes_of_quantised: list | None = None):
        self.sizes, self.sizes_of_quantised = sizes, sizes_of_quantised

    def get_name(self) -> str:
        return f"takes {self.sizes}"

    def get_supported_kernel_block_sizes(self, kv_cache_spec: object = None) -> list:
        mode = getattr(kv_cache_spec, "kv_quant_mode", None)
        quantised = mode is not None and mode.name != "NONE"
        return self.sizes_of_quantised if quantised and self.sizes_of_quantised else self.sizes


def _backend(data: dict, multiple_of) -> Backend:
    return Backend(*([multiple_of(one["multiple_of"]) if isinstance(one, dict) else one for one in sizes] if sizes
                     else None for sizes in (data["sizes"], data.get("sizes_of_quantised"))))


def ours(question: dict, world: World) -> object:
    if question["call"] == "select_common_block_size":
        return select_common_block_size(question["block_size"],
                                        [_backend({"sizes": sizes}, MultipleOf) for sizes in question["backends"]])
    groups = [KVCacheGroupSpec(one["layer_names"], spec_from_dict(one["spec"])) for one in question["groups"]]
    tensors = [KVCacheTensor(10**6, one["layers"], one["layer_stride"], one["block_stride"])
               for one in question["tensors"]]
    mode = KVQuantMode.FP8_PER_TENSOR
    served = [[AttentionGroup(_backend(data, MultipleOf), _served(group.kv_cache_spec, data, mode))
               for data in one["backends"]] for group, one in zip(groups, question["groups"])]
    return prepare_kernel_block_sizes(KVCacheConfig(7, tensors, groups), served, vllm_version=world.vllm_version)


def their_answer(question: dict, world: World) -> object:
    from vllm.v1.worker import utils

    if question["call"] == "select_common_block_size":
        return utils.select_common_block_size(question["block_size"], [
            _backend({"sizes": sizes}, theirs.multiple_of) for sizes in question["backends"]])
    module = theirs.interface()
    groups = theirs.groups(question["groups"])
    tensors = [module.KVCacheTensor(size=10**6, **one) for one in question["tensors"]]
    mode = module.KVQuantMode.FP8_PER_TENSOR
    served = [[utils.AttentionGroup(_backend(data, theirs.multiple_of), list(group.layer_names),
                                    _served(group.kv_cache_spec, data, mode), index)
               for data in one["backends"]]
              for index, (group, one) in enumerate(zip(groups, question["groups"]))]
    return utils.prepare_kernel_block_sizes(module.KVCacheConfig(7, tensors, groups), served)


def _served(spec: object, data: dict, mode: object) -> object:
    """The spec that a backend serves inside a group: its first, quantised or not."""
    first = next(iter(spec.kv_cache_specs.values())) if hasattr(spec, "kv_cache_specs") else spec
    if not data["quantised"] or not hasattr(first, "kv_quant_mode"):
        return first
    return replace(first, kv_quant_mode=mode)


KIND = Kind("kernel blocks", "select_common_block_size and prepare_kernel_block_sizes with random backends",
            "HiSparse's specs, which have no layer views", ask, ours, their_answer)
