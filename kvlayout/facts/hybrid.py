"""Attention beside recurrent states: the attention block grows until its page holds a state, whose page is padded.

All layers share one pool of blocks, so their pages must be equal. A state has a fixed size, hence the attention block
grows: "Setting attention block size to 544 tokens", and the state's page is padded up to it: "Padding mamba page size
by 1.49%". Source: vLLM 0.29.0 to 0.33.0, ``vllm/platforms/interface.py`` (_align_hybrid_block_size).
"""

from __future__ import annotations

import math
from dataclasses import replace

from kvlayout.errors import LayoutError, check_int
from kvlayout.facts.layers import attention_specs, sliding_block_size
from kvlayout.kernel_blocks import supported_kernel_block_sizes
from kvlayout.rounding import round_up
from kvlayout.spec import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvlayout.versions import NEWEST, at_least

# Mode -> the first release without it. "none": no prefix caching, a state's block spans max_model_len. "align": a
# state is kept at block boundaries. "all": at every multiple of the Mamba chunk.
MAMBA_CACHE_MODES = {"none": None, "align": None, "all": "0.32.0"}


def align_hybrid_block_size(
    specs: dict[str, KVCacheSpec],
    *,
    backend: object = None,
    max_model_len: int | None = None,
    checkpoint_alignment: int = 1,
    mamba_chunk_size: int | None = None,
    vllm_version: str = NEWEST,
) -> dict[str, KVCacheSpec]:
    """Return ``specs`` with the block sizes and the padding that vLLM gives attention+Mamba models.

    ``specs``: {layer: spec} before backends repack them, as ``Model.kv_cache_specs`` gives them; the block size and
    the Mamba cache mode are read from them. Without both kinds of layers they are returned unchanged.
    ``backend``: the attention layers' (a page is measured as it repacks it); None takes any block and repacks
    nothing. ``max_model_len``: tokens of a state's block in mode "none", None leaves the spec's.
    ``checkpoint_alignment``: tokens that a state layer's prefill checkpoints need in mode "align" (0.33 and newer: 64
    for a gated delta net with FlashInfer's prefill, otherwise 1). ``mamba_chunk_size``: for mode "all".
    Raises LayoutError where the backend can't take the raised block.
    """
    attention = attention_specs(specs)
    states = {name: spec for name, spec in specs.items() if isinstance(spec, MambaSpec)}
    if not attention or not states:
        return dict(specs)
    check_int("checkpoint_alignment", checkpoint_alignment, minimum=1)
    main = _main_attention(attention)
    mode = next(iter(states.values())).mamba_cache_mode
    token_bytes = _token_bytes(main, backend)
    state_bytes = max(spec.unpadded_page_size_bytes for spec in states.values())
    smallest = _smallest_kernel_block(backend)
    alignment = max(smallest, main.block_size)
    if isinstance(main, MLAAttentionSpec):
        # Latent decode kernels read 128 tokens at a time.
        alignment = max(alignment, 128)
    if mode == "align" and at_least(vllm_version, "0.33.0"):
        alignment = math.lcm(alignment, checkpoint_alignment)
    if mode == "all":
        alignment = math.lcm(alignment, check_int("mamba_chunk_size", mamba_chunk_size, minimum=1))
    block_size = round_up(-(-state_bytes // token_bytes), alignment)
    if at_least(vllm_version, "0.32.0"):
        block_size = round_up(block_size, smallest)
    state_block = block_size
    block_size = max(block_size, main.block_size)
    _check_block_size(block_size, main.block_size, backend, vllm_version)
    page_bytes = block_size * token_bytes
    if mode == "none":
        state_block = None if max_model_len is None else check_int("max_model_len", max_model_len, minimum=1)
    elif mode == "align":
        state_block = block_size
    aligned = {}
    for name, spec in specs.items():
        if isinstance(spec, MambaSpec):
            padded = page_bytes if page_bytes != state_bytes else spec.page_size_padded
            aligned[name] = replace(spec, block_size=state_block or spec.block_size, page_size_padded=padded)
        else:
            aligned[name] = _with_block_size(spec, block_size, backend, vllm_version)
    return aligned


def mamba_padding_percent(specs: dict[str, KVCacheSpec]) -> float:
    """Return by how many percent the state pages are padded, as vLLM logs it; 0 without states or padding."""
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    return max((100 * (spec.page_size_bytes / spec.unpadded_page_size_bytes - 1) for spec in states), default=0.0)


def _main_attention(attention: dict[str, AttentionSpec]) -> AttentionSpec:
    """The spec that stands for the model's attention: the first full one, without a sparse indexer's."""
    full = [spec for spec in attention.values() if isinstance(spec, FullAttentionSpec)
            and getattr(spec, "cache_role", "sparse") != "indexer"]
    return full[0] if full else next(iter(attention.values()))


def _token_bytes(spec: AttentionSpec, backend: object) -> int:
    """Bytes of one token in one attention layer; a latent counts as its elements, whatever its format."""
    one_token = spec.copy_with_new_block_size(1)
    if isinstance(spec, MLAAttentionSpec):
        return replace(one_token, state_content_bytes=None, page_size_padded=None).page_size_bytes
    return (one_token if backend is None else backend.customize_spec(one_token)).page_size_bytes


def _smallest_kernel_block(backend: object) -> int:
    sizes = () if backend is None else supported_kernel_block_sizes(backend)
    return min((getattr(size, "base", size) for size in sizes), default=1)


def _with_block_size(spec: KVCacheSpec, block_size: int, backend: object, vllm_version: str) -> KVCacheSpec:
    raised = spec.copy_with_new_block_size(block_size)
    if isinstance(spec, SlidingWindowSpec):
        return raised.copy_with_new_block_size(sliding_block_size(raised, backend, vllm_version))
    return raised


def _check_block_size(block_size: int, before: int, backend: object, vllm_version: str) -> None:
    """vLLM 0.32 and newer: a raised block that the backend doesn't take is refused at once."""
    if backend is None or block_size == before or not at_least(vllm_version, "0.32.0"):
        return
    sizes = [getattr(size, "base", size) for size in supported_kernel_block_sizes(backend)]
    if sizes and all(block_size % size for size in sizes):
        raise LayoutError("block_size", block_size, "is what the state pages need, and the attention backend takes "
                          f"multiples of {' or '.join(map(str, sizes))} only", "Choose another backend or block size")
