"""The machine and settings that a backend asks about before it declares layouts, kernel blocks or a page.

vLLM's backends answer by the hardware and environment of the process. Here that is a value: the catalogue keeps each
branch of an answer with its condition, as vLLM's source has it, and a :class:`Machine` says which conditions hold.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from kvlayout.errors import LayoutError, check_int
from kvlayout.spec import AttentionSpec, KVCacheSpec, KVQuantMode

PLATFORMS = ("cuda", "rocm", "cpu", "xpu")
CPU_ISAS = ("vec", "vec16", "amx", "neon", "rvv", "vxe", "vsx")


@dataclass(frozen=True)
class Machine:
    """What vLLM's backends may ask. The default is a CPU without settings, as the catalogue was recorded.

    Attributes:
        platform: "cuda", "rocm", "cpu" or "xpu"
        cuda_major: major compute capability of the GPU (9 Hopper, 10 Blackwell); None without CUDA
        cdna_version: generation of an AMD Instinct GPU (3: MI300); None without one
        shuffle_kv_cache: VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT and AITER are both on
        kv_connector: a KV connector is configured
        cpu_isa: what CPU_ATTN computes with, and orders its blocks for: "vec", "vec16" (any x86), "amx", "neon" ...
        rotary_dim: elements of a head that RoPE turns, by the model's config; only Octave's page depends on it
    """

    platform: str = "cpu"
    cuda_major: int | None = None
    cdna_version: int | None = None
    shuffle_kv_cache: bool = False
    kv_connector: bool = False
    cpu_isa: str = "vec"
    rotary_dim: int | None = None

    def __post_init__(self):
        if self.platform not in PLATFORMS:
            raise LayoutError("platform", self.platform, "is not a platform of vLLM",
                              f"Use one of {', '.join(PLATFORMS)}")
        if self.cpu_isa not in CPU_ISAS:
            raise LayoutError("cpu_isa", self.cpu_isa, "is unknown to CPU_ATTN", f"Use one of {', '.join(CPU_ISAS)}")
        for name, platform in (("cuda_major", "cuda"), ("cdna_version", "rocm")):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1)
                if self.platform != platform:
                    raise LayoutError(name, getattr(self, name), f"needs platform {platform}, not {self.platform}")
        if self.rotary_dim is not None:
            check_int("rotary_dim", self.rotary_dim, minimum=0)


# Conditions of vLLM's source that a Machine and a spec decide. Any other asks for a model's configuration or a
# kernel library; it counts as "no", as in the process that recorded the catalogue.
_DECIDED: dict[str, Callable[[Machine, KVCacheSpec | None], bool]] = {
    "current_platform.is_rocm()": lambda machine, spec: machine.platform == "rocm",
    "current_platform.is_xpu()": lambda machine, spec: machine.platform == "xpu",
    "capability is not None": lambda machine, spec: machine.cuda_major is not None,
    "capability.major == 10": lambda machine, spec: machine.cuda_major == 10,
    "current_platform.is_device_capability_family(90)": lambda machine, spec: machine.cuda_major == 9,
    "current_platform.is_device_capability_family(100)": lambda machine, spec: machine.cuda_major == 10,
    "get_cdna_version() == 3": lambda machine, spec: machine.cdna_version == 3,
    "rocm_aiter_ops.is_shuffle_kv_cache_enabled()": lambda machine, spec: machine.shuffle_kv_cache,
    "_minimax_m3_aiter_sparse_pa_requested()": lambda machine, spec: machine.shuffle_kv_cache,
    "_kv_connector_enabled()": lambda machine, spec: machine.kv_connector,
    "isinstance(kv_cache_spec, AttentionSpec)": lambda machine, spec: isinstance(spec, AttentionSpec),
    "kv_cache_spec.kv_quant_mode != KVQuantMode.NONE":
        lambda machine, spec: getattr(spec, "kv_quant_mode", KVQuantMode.NONE) != KVQuantMode.NONE,
}


def holds(condition: str | None, machine: Machine, spec: KVCacheSpec | None = None) -> bool:
    """Return whether a recorded condition holds on ``machine`` for ``spec``; None, the last branch, always does."""
    return condition is None or _holds(ast.parse(condition, mode="eval").body, machine, spec)


def is_decided(condition: str | None) -> bool:
    """Whether a Machine and a spec decide every part of a recorded condition."""
    return condition is None or all(ast.unparse(part) in _DECIDED
                                    for part in _parts(ast.parse(condition, mode="eval").body))


def _holds(node: ast.expr, machine: Machine, spec: KVCacheSpec | None) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_holds(value, machine, spec) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _holds(operand, machine, spec)
    decide = _DECIDED.get(ast.unparse(node))
    return decide(machine, spec) if decide else False


def _parts(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BoolOp(values=values):
            return [part for value in values for part in _parts(value)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _parts(operand)
    return [node]
