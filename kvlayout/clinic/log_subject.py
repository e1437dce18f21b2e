"""What a selection or a config says about itself, in the numbers that vLLM's log lines are checked against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from kvlayout.address import AddressMap
from kvlayout.capture.log_facts import Fact
from kvlayout.captured import CONFIG, is_captured
from kvlayout.config import KVCacheConfig
from kvlayout.errors import LayoutError
from kvlayout.plan import Plan
from kvlayout.rounding import ceil_div
from kvlayout.spec import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

AGREES, DIFFERS, IMPOSSIBLE, UNKNOWN = "agrees", "differs", "can't be", "can't tell"
MOST = 2**63 - 1


@dataclass(frozen=True)
class Answer:
    """What a check found: ``said`` by the line, ``ours``, a verdict and one sentence on why."""

    name: str
    said: str
    ours: str
    verdict: str
    why: str


class Subject:
    """A Plan, a KVCacheConfig or an AddressMap, and what the other lines of the same text say.

    Attributes:
        config, plan: the config; the plan, or None
        num_blocks, bytes_per_block: block ids, and bytes that one stands for
        specs: {layer: spec}
        stated: {kind: values of the first such line of the text}
    """

    def __init__(self, subject: object, facts: tuple[Fact, ...] = ()):
        if not isinstance(subject, Plan | KVCacheConfig | AddressMap):
            raise LayoutError("subject", subject, "must be a Plan, a KVCacheConfig or an AddressMap",
                              "Give what make_plan or kvlayout.capture.parse returned")
        self.plan = subject if isinstance(subject, Plan) else None
        self.config = subject if isinstance(subject, KVCacheConfig) else subject.config
        self._map = subject.address_map if self.plan else subject if isinstance(subject, AddressMap) else None
        self.num_blocks = self.config.num_blocks
        self.specs = self.config.layer_specs
        self.stated: dict[str, dict] = {}
        for fact in facts:
            self.stated.setdefault(fact.kind, fact.values)
        if self.plan:
            self.bytes_per_block = self.plan.bytes_per_block
        else:
            self.bytes_per_block = self.config.size_bytes // self.num_blocks if self.num_blocks else 0

    @property
    def layout_name(self) -> str | None:
        """The layout, or None where a config doesn't say."""
        if self.plan and is_captured(self.plan.selection.model) and self.plan.selection.layout is None:
            return self.plan.selection.model[CONFIG].get("kv_cache_layout")
        return self._map.layout.name if self._map else self.config.kv_cache_layout

    @property
    def attention(self) -> dict[str, AttentionSpec]:
        """{layer: spec} of the attention layers."""
        return {name: spec for name, spec in self.specs.items() if isinstance(spec, AttentionSpec)}

    @property
    def states(self) -> dict[str, MambaSpec]:
        """{layer: spec} of the layers that keep a recurrent state."""
        return {name: spec for name, spec in self.specs.items() if isinstance(spec, MambaSpec)}

    @property
    def group_specs(self) -> list[list[KVCacheSpec]]:
        """The different specs of each group that has layers here."""
        return [list(dict.fromkeys(group.layer_specs.values())) for group in self.config.kv_cache_groups
                if group.layer_names]

    def shape(self, layer: str) -> tuple[int, int, int, int] | None:
        """(B, H, N, C bytes) of a layer's view, counted in kernel blocks; None for a config without a map."""
        return self._map.shape(layer) if self._map else None

    def max_model_len(self) -> tuple[int | None, str]:
        """Tokens of the longest request, and where that is known from; (None, "") where nothing says."""
        stated = self.stated.get("maximum_concurrency", {}).get("tokens")
        if is_count(stated) and stated:
            return stated, "as the text says"
        if self.plan and self.plan.selection.max_model_len:
            return self.plan.selection.max_model_len, "as selected"
        known = getattr(self.plan.model.architecture, "max_model_len", None) if self.plan else None
        return (known, "as the model's config says") if known else (None, "")

    def memory_bytes(self) -> tuple[int, int] | None:
        """The least and the most bytes that the text's "Available KV cache memory" can mean; None without it."""
        stated = self.stated.get("available_kv_cache_memory", {}).get("gib")
        found = exact(stated)
        return None if found is None else gib_bounds(found)


def exact(value: object) -> Fraction | None:
    """A logged number without rounding; None for one that no 63 bits hold, and for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    found = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    return found if abs(found) <= MOST else None


def is_count(value: object) -> bool:
    """Whether a logged value is a whole number from 0 to 2^63 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def gib_bounds(gib: Fraction) -> tuple[int, int]:
    """The bytes, least and most, that vLLM prints as this many GiB with two decimals."""
    half = Fraction(1, 200)
    return max(0, math.ceil((gib - half) * 2**30)), max(0, math.floor((gib + half) * 2**30))


def gib_text(size_bytes: int) -> str:
    """Bytes as GiB, as vLLM prints them."""
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes < 2**90 else f"{size_bytes:,} bytes"


def blocks_a_request(specs: list[KVCacheSpec], tokens: int) -> tuple[int, int] | None:
    """The fewest and most blocks that a request of ``tokens`` takes from one group.

    A window's depends on max_num_batched_tokens, which no config holds: so a range. None where the encoder's length
    decides. Source: vLLM 0.33.0, max_memory_usage_bytes of each spec.
    """
    bounds = [_blocks_of(spec, tokens) for spec in specs]
    if not bounds or None in bounds:
        return None
    return max(low for low, _ in bounds), max(high for _, high in bounds)


def _blocks_of(spec: KVCacheSpec, tokens: int) -> tuple[int, int] | None:
    whole = ceil_div(tokens, spec.block_size)
    if isinstance(spec, MambaSpec):
        extra = spec.num_speculative_blocks + spec.num_prefill_checkpoint_blocks
        if spec.mamba_cache_mode == "all":
            return whole, whole + extra
        fixed = 2 if spec.mamba_cache_mode == "align" else 1
        return fixed, fixed + extra
    if isinstance(spec, CircularBufferSpec):
        return 1, 1
    if isinstance(spec, CrossAttentionSpec | EncoderOnlyAttentionSpec):
        return None
    if isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec):
        near = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", tokens)
        return ceil_div(min(near, tokens), spec.block_size), whole + 1
    return whole, whole
