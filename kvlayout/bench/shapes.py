"""The shapes that a kernel is tried with: the spec as given, then random ones like it, in every layout in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.bench.case import CHANGES, Case
from kvlayout.bench.requests import draw_requests, far_requests
from kvlayout.bench.sides import token_sides
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError
from kvlayout.facts.backends import Backend
from kvlayout.geometry import layer_views
from kvlayout.interior import Interior, default_interior
from kvlayout.kernel_blocks import select_common_block_size
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import AttentionSpec, MultipleOf, UniformTypeKVCacheSpecs

# What may differ from the given spec. far_blocks: one case a layout whose offsets pass 2^31 elements; far_uint32: let
# those pass 2^32 instead.
VARY = ("num_kv_heads", "head_size", "head_size_v", "block_size", "dtype", "page_size_padded", "kernel_block_size",
        "far_uint32", "far_blocks")

_OUTER = frozenset(("block_size", "page_size_padded", "kernel_block_size"))
_HEADS = (1, 2, 3, 4, 5, 7)
_HEAD_SIZES = (8, 16, 24, 32)
_BLOCK_SIZES = (1, 2, 4, 6, 8, 16)
_ODD_HEAD_SIZES = (46,)  # a backend of vLLM takes multiples of 8 at best
_DTYPES = ("bfloat16", "float16", "float32", "uint8")
_TRIES = 100
_PREFILLS = 13  # every so many cases whole prompts are written: no multiple of vLLM's six layouts, each gets some
_PROMPTS = 96  # tokens that there is room for in such a case, at least
_PADDED_ROWS = (0, 0, 0, 1, 5)
_LARGE_PAGE = 1 << 18  # elements: of larger ones a pool has few, so that a case stays a matter of milliseconds


class Shapes:
    """Draws cases: the same ones for the same arguments.

    ``refused``: {layout: why no view can express it}; ``replaced``: {layout: why it can't hold the spec as given},
    of the cases drawn so far, which have another shape then. Raises LayoutError for a spec whose tokens a kernel
    can't be handed as key and value.
    """

    def __init__(self, spec: AttentionSpec, layouts: Sequence[KVCacheLayout], backend: Backend | None,
                 vary: Sequence[str], seed: int):
        _check_spec("spec", spec)
        if spec.dtype == "bool":
            raise LayoutError("dtype", spec.dtype, "holds no fingerprints", "Give uint8")
        # Few backends take another head size for V, and none says so: the given spec does.
        vary = frozenset(vary) - (set() if backend is None else {"head_size_v"})
        self._spec, self._backend, self._vary, self._seed = spec, backend, vary, seed
        self._sizes: dict[AttentionSpec, int] = {}
        packed = self._packed(spec)
        size = self._kernel_block_size(np.random.default_rng(seed), packed, frozenset())
        self._given = {name: getattr(packed, name) for name in CHANGES} | {"block_size": size}
        token_sides(packed, self._interior(packed.copy_with_new_block_size(size), layouts[0]))
        self.refused: dict[str, LayoutError] = {}
        self.replaced: dict[str, LayoutError] = {}
        self.layouts = [layout for layout in layouts if self._is_possible(layout)]
        if not self.layouts:
            raise next(iter(self.refused.values()))

    def case(self, number: int) -> Case:
        """Return the case of that number: the spec as given once in each layout, then random ones."""
        turn, place = divmod(number, len(self.layouts))
        return self._draw(number, self.layouts[place], plain=turn == 0)

    def far_case(self, number: int, layout: KVCacheLayout, bits: int = 31) -> Case:
        """Return a case of the spec as given whose element offsets inside the layer pass 2^``bits``."""
        rng = np.random.default_rng([self._seed, number])
        spec = self._packed(self._spec)
        count = 2 if layout.is_block_outermost else 1
        block = spec.page_size_bytes // dtype_size_bytes(spec.dtype)
        num_blocks = 2**bits // (count * block) + 3
        size = self._kernel_block_size(rng, spec, frozenset())
        return self._case(rng, number, layout, [spec] * count, count - 1, num_blocks, size, is_far=True)

    def _is_possible(self, layout: KVCacheLayout) -> bool:
        try:
            self._draw(0, layout, plain=False)
        except LayoutError as error:
            self.refused[layout.name] = error
            return False
        return True

    def _draw(self, number: int, layout: KVCacheLayout, plain: bool) -> Case:
        rng = np.random.default_rng([self._seed, number])
        # Not every layout pads, splits or mixes pages, nor every backend takes all head sizes: draw again, then less.
        steps = [self._vary, self._vary & _OUTER, frozenset()]
        for vary in reversed(steps) if plain else steps:
            for _ in range(_TRIES):
                try:
                    return self._random(rng, number, layout, vary)
                except LayoutError as error:
                    refused = error
            if plain:
                self.replaced.setdefault(layout.name, refused)
        raise refused

    def _random(self, rng, number: int, layout, vary: frozenset[str]) -> Case:
        spec = self._packed(self._varied(rng, vary))
        if "page_size_padded" in vary and rng.random() < 0.25:
            item = dtype_size_bytes(spec.dtype)
            spec = replace(spec, page_size_padded=spec.page_size_bytes + item * int(rng.integers(1, 40)))
        page = spec.page_size_bytes // dtype_size_bytes(spec.dtype)
        pages = [spec] * (int(rng.integers(1, 4)) if page < _LARGE_PAGE else 1)
        local = int(rng.integers(len(pages)))
        if rng.random() < 0.2:
            pages.insert(int(rng.integers(len(pages) + 1)), self._packed(replace(
                self._spec, block_size=spec.block_size, dtype=spec.dtype, head_size=spec.head_size + 8,
                page_size_padded=None)))
            local = next(i for i, page in enumerate(pages) if page is spec)
        size = self._kernel_block_size(rng, spec, vary)
        num_blocks = int(rng.integers(3, 10 if page < _LARGE_PAGE else 4))
        if _is_prefill(number) and page < _LARGE_PAGE:
            num_blocks += -(-_PROMPTS // spec.block_size)
        return self._case(rng, number, layout, pages, local, num_blocks, size)

    def _varied(self, rng, vary: frozenset[str]) -> AttentionSpec:
        spec, changed = self._spec, {}
        if not vary:
            return spec
        is_latent = spec.head_size_v == 0
        if spec.state_content_bytes is not None or spec.num_head_slots is not None:
            vary &= _OUTER  # somebody has packed the page for these heads

        def pick(name: str, choices: Sequence, given, share: float = 1.0) -> None:
            if name in vary and rng.random() < share:
                given = choices[int(rng.integers(len(choices)))]
            changed[name] = given

        pick("num_kv_heads", (spec.num_kv_heads,) if is_latent else _HEADS, spec.num_kv_heads)
        sizes = self._head_sizes()
        pick("head_size", sizes, spec.head_size)
        # V follows K unless the given spec tells them apart, or they may differ.
        follows = spec.head_size_v if is_latent or spec.head_size_v != spec.head_size else changed["head_size"]
        pick("head_size_v", (0,) if is_latent else sizes, follows, share=0.5)
        pick("block_size", self._block_sizes, spec.block_size)
        pick("dtype", self._dtypes(), spec.dtype)
        padding = spec.page_size_bytes - spec.unpadded_page_size_bytes
        found = replace(spec, page_size_padded=None, **changed)
        if padding and found.page_size_padded is None:
            found = replace(found, page_size_padded=found.page_size_bytes + padding)
        return found

    def _head_sizes(self) -> Sequence[int]:
        if self._backend is None:
            return _HEAD_SIZES + _ODD_HEAD_SIZES
        return [size for size in self._backend.head_sizes if size <= 256] or _HEAD_SIZES

    def _dtypes(self) -> Sequence[str]:
        if self._backend is None or not self._backend.dtypes:
            return _DTYPES
        takes_fp8 = any(name.startswith("fp8") for name in self._backend.kv_cache_dtypes)
        return [name for name in _DTYPES if name in self._backend.dtypes or (takes_fp8 and name == "uint8")]

    @cached_property
    def _block_sizes(self) -> Sequence[int]:
        if self._backend is None:
            return _BLOCK_SIZES
        found: set[int] = set()
        for size in self._backend.get_supported_kernel_block_sizes(self._spec):
            if isinstance(size, MultipleOf):
                found |= {one for one in _BLOCK_SIZES if one % size.base == 0} or {size.base, 3 * size.base}
            else:
                found |= {size, 2 * size, 4 * size}  # more than the kernel takes: kernel blocks
        return sorted(found)

    def _packed(self, spec: AttentionSpec) -> AttentionSpec:
        """The spec as the backend repacks it."""
        if self._backend is None:
            return spec
        packed = self._backend.customize_spec(spec)
        _check_spec(f"customize_spec of {self._backend.name}", packed)
        return packed

    def _interior(self, spec: AttentionSpec, layout) -> Interior:
        """What lies where in a page of ``spec``, which is of kernel blocks where those split the manager's."""
        declared = None if self._backend is None else self._backend.interior(spec, layout)
        return declared or default_interior(spec)

    def _kernel_block_size(self, rng, spec: AttentionSpec, vary: frozenset[str]) -> int:
        if self._backend is not None:
            if spec not in self._sizes:
                self._sizes[spec] = select_common_block_size(spec.block_size, [self._backend], [spec])
            return self._sizes[spec]
        if "kernel_block_size" not in vary or rng.random() > 0.3:
            return spec.block_size
        divisors = [size for size in range(1, spec.block_size) if spec.block_size % size == 0]
        return divisors[int(rng.integers(len(divisors)))] if divisors else spec.block_size

    def _case(self, rng, number, layout, pages, local: int, num_blocks: int, size: int, is_far=False) -> Case:
        names = [f"layer.{i}" for i in range(len(pages))]
        spec, specs = pages[local], dict(zip(names, pages))
        interiors = {name: self._interior(one.copy_with_new_block_size(size), layout) for name, one in specs.items()}
        group_spec = spec if len(set(specs.values())) == 1 else UniformTypeKVCacheSpecs(spec.block_size, specs)
        config: KVCacheConfig = get_kv_cache_config_from_groups(
            [KVCacheGroupSpec(names, group_spec)], 0, layout, num_gpu_blocks_override=num_blocks)
        address_map = AddressMap(config, layout, None if size == spec.block_size else [size], interiors)
        for region in address_map.regions:
            layer_views(region.geometry, region.tensor.layers, region.spec.dtype, config.size_bytes)
        sides = token_sides(spec, interiors[names[local]])
        drawn = (rng, num_blocks, spec.block_size, size, sum(len(side.slot) for side in sides))
        asked = far_requests(*drawn) if is_far else draw_requests(*drawn, is_prefill=_is_prefill(number))
        is_strided = bool(rng.integers(2))
        padded = int(np.random.default_rng([self._seed, number, 1]).choice(_PADDED_ROWS))
        return Case(number, address_map, names[local], spec, self._given, sides, asked, is_strided, padded, is_far)


def _is_prefill(number: int) -> bool:
    return number % _PREFILLS == 6


def _check_spec(argument: str, spec: object) -> None:
    if not isinstance(spec, AttentionSpec) or spec.tokens_per_state != 1 or not spec.uses_slot_mapping:
        raise LayoutError(argument, spec, "must be attention with one state a token, addressed by slots",
                          "Give a FullAttentionSpec, SlidingWindowSpec or MLAAttentionSpec")
