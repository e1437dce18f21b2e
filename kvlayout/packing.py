"""Packed groups: layers of several page sizes side by side in the blocks of a block-outermost layout.

A block is as large as the largest group needs, so groups should need about the same. Layers of one uniform type are
a bucket. A bucket with as many layers of each of its page sizes is a repeating pattern (one layer of each size);
patterns of mixed sizes set how many repeats one group covers, and other even buckets are split down to that. Buckets
of state (Mamba, rings, from 0.30 also sliding windows where no pattern exists) are split further, until a group of
them fits into the block that the others need anyway.
Sources: vLLM 0.32.0 and older ``vllm/v1/core/kv_cache_utils.py``, 0.33.0 ``kv_cache_planning.py``
(_get_packed_kv_cache_groups, _approximate_gcd).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.merging import is_uniform_type, uniform_type_specs
from kvlayout.rounding import ceil_div
from kvlayout.spec import CircularBufferSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from kvlayout.versions import NEWEST, at_least


@dataclass(frozen=True)
class _Bucket:
    """Layers of one uniform type, and their names by page size in bytes; both in model order."""

    specs: dict[str, KVCacheSpec]
    names_by_page: dict[int, list[str]]

    @property
    def first_spec(self) -> KVCacheSpec:
        return next(iter(self.specs.values()))

    @property
    def repeats(self) -> int:
        """Layers of the page size that most layers have; of a pattern, how often it repeats."""
        return max(map(len, self.names_by_page.values()))

    @property
    def is_pattern(self) -> bool:
        return len(set(map(len, self.names_by_page.values()))) == 1

    @property
    def is_mixed_pattern(self) -> bool:
        return self.is_pattern and len(self.names_by_page) > 1

    def widest_group_bytes(self, num_groups: int) -> int:
        """Bytes of one block of the widest group when the bucket is split into ``num_groups``."""
        return sum(ceil_div(len(names), num_groups) * page for page, names in self.names_by_page.items())


def pack_groups(specs: Mapping[str, KVCacheSpec], *, vllm_version: str = NEWEST) -> list[KVCacheGroupSpec]:
    """Return the packed groups of these layers; each group's spec is a UniformTypeKVCacheSpecs.

    Raises LayoutError where vLLM's split would leave layers without a group, or mix types in one.
    """
    buckets = _bucket_layers(specs)
    repeats_per_group = _repeats_per_group(buckets)

    def is_state(bucket: _Bucket) -> bool:
        if not at_least(vllm_version, "0.30.0"):
            return isinstance(bucket.first_spec, MambaSpec)
        return isinstance(bucket.first_spec, (MambaSpec, CircularBufferSpec)) or (
            repeats_per_group is None and isinstance(bucket.first_spec, SlidingWindowSpec))

    def groups_by_pattern(bucket: _Bucket) -> int:
        if repeats_per_group is None or not bucket.is_pattern:
            return 1
        return ceil_div(bucket.repeats, repeats_per_group)

    # What a block must hold however the state is split: a state bucket can go down to one layer a group.
    needed_bytes = max(bucket.widest_group_bytes(len(bucket.specs) if is_state(bucket) else groups_by_pattern(bucket))
                       for bucket in buckets)
    groups = []
    for bucket in buckets:
        num_groups = groups_by_pattern(bucket)
        if is_state(bucket):
            layers_per_block = max(needed_bytes // bucket.first_spec.page_size_bytes, 1)
            num_groups = max(num_groups, ceil_div(len(bucket.specs), layers_per_block))
        groups += _split(bucket, num_groups)
    return groups


def _bucket_layers(specs: Mapping[str, KVCacheSpec]) -> list[_Bucket]:
    buckets: list[_Bucket] = []
    for name, spec in specs.items():
        # A bucket is of one type already, so its first spec speaks for it.
        bucket = next((one for one in buckets if is_uniform_type([one.first_spec, spec])), None)
        if bucket is None:
            bucket = _Bucket({}, {})
            buckets.append(bucket)
        bucket.specs[name] = spec
        bucket.names_by_page.setdefault(spec.page_size_bytes, []).append(name)
    return buckets


def _repeats_per_group(buckets: Sequence[_Bucket]) -> int | None:
    """Repeats of the pattern that one group covers, or None where no bucket mixes page sizes evenly."""
    least = max((bucket.repeats for bucket in buckets if bucket.is_mixed_pattern), default=0)
    if not least:
        return None
    return least_padding_size([bucket.repeats for bucket in buckets if bucket.is_pattern], least)


def least_padding_size(counts: Sequence[int], at_least_size: int) -> int:
    """Return the size, ``at_least_size`` or more, whose multiples the counts need the least rounding up to.

    The larger of two equally good sizes.
    """
    return min(range(at_least_size, max(counts) + 1), key=lambda size: (sum(-n % size for n in counts), -size))


def _split(bucket: _Bucket, num_groups: int) -> list[KVCacheGroupSpec]:
    """Deal the repeats of the bucket's pattern out to ``num_groups`` groups, round robin."""
    if num_groups == 1:
        return [_uniform_group(bucket.specs, list(bucket.specs))]
    if not bucket.is_pattern or num_groups > bucket.repeats:
        counts = {page: len(names) for page, names in bucket.names_by_page.items()}
        raise LayoutError("kv_cache_spec", counts, "(page size in bytes: layers of it) can't be dealt out to "
                          f"{num_groups} groups; vLLM fails because layers or groups would be left over",
                          "Use a layout that isn't block-outermost, or one page size for these layers")
    repeats = list(zip(*bucket.names_by_page.values()))
    return [_uniform_group(bucket.specs, [name for repeat in repeats[start::num_groups] for name in repeat])
            for start in range(num_groups)]


def _uniform_group(specs: Mapping[str, KVCacheSpec], names: list[str]) -> KVCacheGroupSpec:
    spec = uniform_type_specs({name: specs[name] for name in names})
    if spec is None:
        # Only where a plain sliding window comes first in the bucket, but an MLA one in this part of it.
        raise LayoutError("kv_cache_spec", names, "split into a group whose first layer doesn't take in the others, "
                          "and vLLM fails", "Give these layers specs of one class")
    return KVCacheGroupSpec(names, spec)
