"""What vLLM's ``--kv-cache-dtype`` means: the element type that is stored, and how values are quantised.

Source: vLLM 0.29.0 to 0.33.0, ``vllm/config/cache.py`` (names), ``vllm/utils/torch_utils.py`` (element types),
``vllm/v1/kv_cache_interface.py`` (get_kv_quant_mode).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.errors import LayoutError
from kvlayout.spec import KVQuantMode
from kvlayout.versions import NEWEST, VLLM_VERSIONS, at_least


@dataclass(frozen=True)
class CacheDtype:
    """A KV cache dtype as vLLM resolves it.

    Attributes:
        name: vLLM's name, such as "fp8"
        storage: element type of the cache, by torch name
        quant_mode: how values are quantised
    """

    name: str
    storage: str
    quant_mode: KVQuantMode

    @property
    def is_quantized(self) -> bool:
        """Whether stored values need scales to be read."""
        return self.quant_mode is not KVQuantMode.NONE


_PER_TENSOR = KVQuantMode.FP8_PER_TENSOR
# name -> (element type, quantisation, first release that knows it); None: the model's own element type.
_KNOWN: dict[str, tuple[str | None, KVQuantMode, str]] = {
    "auto": (None, KVQuantMode.NONE, VLLM_VERSIONS[0]),
    "float16": ("float16", KVQuantMode.NONE, VLLM_VERSIONS[0]),
    "bfloat16": ("bfloat16", KVQuantMode.NONE, VLLM_VERSIONS[0]),
    "fp8": ("uint8", _PER_TENSOR, VLLM_VERSIONS[0]),
    "fp8_e4m3": ("uint8", _PER_TENSOR, VLLM_VERSIONS[0]),
    "fp8_e5m2": ("uint8", _PER_TENSOR, VLLM_VERSIONS[0]),
    "fp8_inc": ("float8_e4m3fn", _PER_TENSOR, VLLM_VERSIONS[0]),
    "fp8_ds_mla": ("uint8", _PER_TENSOR, VLLM_VERSIONS[0]),
    "nvfp4_ds_mla": ("uint8", KVQuantMode.NVFP4_DS_MLA, "0.30.0"),
    "turboquant_k8v4": ("uint8", KVQuantMode.TURBOQUANT_K8V4, VLLM_VERSIONS[0]),
    "turboquant_4bit_nc": ("uint8", KVQuantMode.TURBOQUANT_4BIT_NC, VLLM_VERSIONS[0]),
    "turboquant_k3v4_nc": ("uint8", KVQuantMode.TURBOQUANT_K3V4_NC, VLLM_VERSIONS[0]),
    "turboquant_3bit_nc": ("uint8", KVQuantMode.TURBOQUANT_3BIT_NC, VLLM_VERSIONS[0]),
    "ultraquant_4bit": ("uint8", KVQuantMode.ULTRAQUANT_4BIT, "0.32.0"),
    "octave_k3v4": ("uint8", KVQuantMode.OCTAVE_K3V4, "0.33.0"),
    "octave_k3v3": ("uint8", KVQuantMode.OCTAVE_K3V3, "0.33.0"),
    "octave_k3v3_compact": ("uint8", KVQuantMode.OCTAVE_K3V3_COMPACT, "0.33.0"),
    "int4_per_token_head": ("uint8", KVQuantMode.INT4_PER_TOKEN_HEAD, VLLM_VERSIONS[0]),
    "int8_per_token_head": ("int8", KVQuantMode.INT8_PER_TOKEN_HEAD, VLLM_VERSIONS[0]),
    "fp8_per_token_head": ("uint8", KVQuantMode.FP8_PER_TOKEN_HEAD, VLLM_VERSIONS[0]),
    "nvfp4": ("uint8", KVQuantMode.NVFP4, VLLM_VERSIONS[0]),
    "nvfp4_4over6": ("uint8", KVQuantMode.NVFP4, VLLM_VERSIONS[0]),
}


def native_layers(kv_cache_dtype: str, num_layers: int, is_hybrid: bool) -> frozenset[int]:
    """Return the numbers of the layers that vLLM leaves in the model's element type in spite of ``kv_cache_dtype``.

    Packed formats spare the first and the last two layers, at most half of each, unless states are mixed in.
    Source: vLLM, ``vllm/engine/arg_utils.py`` and ``.../quantization/turboquant/config.py``.
    """
    if is_hybrid or not kv_cache_dtype.startswith(("turboquant_", "ultraquant_")):
        return frozenset()
    edge = min(2, num_layers // 2)
    return frozenset((*range(edge), *range(num_layers - edge, num_layers)))


def kv_cache_dtypes(vllm_version: str = NEWEST) -> tuple[str, ...]:
    """Return the names that ``--kv-cache-dtype`` takes in a release."""
    return tuple(name for name, (_, _, since) in _KNOWN.items() if at_least(vllm_version, since))


def resolve_kv_cache_dtype(kv_cache_dtype: str, model_dtype: str, vllm_version: str = NEWEST) -> CacheDtype:
    """Return what ``kv_cache_dtype`` stores for a model of element type ``model_dtype``.

    LayoutError for a name that the release doesn't know.
    """
    names = kv_cache_dtypes(vllm_version)
    if not isinstance(kv_cache_dtype, str) or kv_cache_dtype not in names:
        raise LayoutError("kv_cache_dtype", kv_cache_dtype, f"is not a KV cache dtype of vLLM {vllm_version}",
                          f"Use one of {', '.join(names)}")
    storage, quant_mode, _ = _KNOWN[kv_cache_dtype]
    return CacheDtype(kv_cache_dtype, storage or model_dtype, quant_mode)
