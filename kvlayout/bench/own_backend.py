"""A base class for a backend that is only designed yet: say what it would declare, in as many lines as facts."""

from __future__ import annotations

from dataclasses import replace

from kvlayout.layout import KVCacheLayout, PhysicalLayout
from kvlayout.spec import AttentionSpec, KVCacheSpec, MultipleOf


class PrototypeBackend:
    """Subclass it and set what differs; any class with the same methods will do as well, vLLM's own too.

    Attributes:
        layouts: supported layouts, most preferred first, by name or member, also ones that vLLM doesn't have; None
            for any
        kernel_block_sizes: tokens, exact or MultipleOf
        page_alignment: bytes that a page is padded up to a multiple of
        block_stride_alignment: bytes, or MultipleOf tokens, that the distance of two blocks is a multiple of
    """

    layouts: tuple[str | KVCacheLayout | PhysicalLayout, ...] | None = None
    kernel_block_sizes: tuple[int | MultipleOf, ...] = (MultipleOf(1),)
    page_alignment: int | None = None
    block_stride_alignment: int | MultipleOf | None = None

    @classmethod
    def get_name(cls) -> str:
        """Return the name of the class."""
        return cls.__name__

    @classmethod
    def supported_kv_cache_layouts(cls):
        """Return ``layouts``."""
        return cls.layouts

    @classmethod
    def get_supported_kernel_block_sizes(cls, spec: KVCacheSpec | None = None):
        """Return ``kernel_block_sizes``."""
        return cls.kernel_block_sizes

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """Return ``spec`` with the alignments; call it last where you repack the page yourself."""
        if cls.page_alignment is not None:
            padded = -(-spec.page_size_bytes // cls.page_alignment) * cls.page_alignment
            if padded != spec.page_size_bytes:
                spec = replace(spec, page_size_padded=padded)
        if cls.block_stride_alignment is not None:
            spec = replace(spec, block_stride_alignment=cls.block_stride_alignment)
        return spec
