"""Layers with a recurrent state: the state tensors of one tensor-parallel rank, and their spec.

Shapes are in elements; the convolution's window lies outside its channels (vLLM's default, "SD").
Source: vLLM 0.29.0 to 0.33.0, ``vllm/model_executor/layers/mamba/mamba_utils.py`` (MambaStateShapeCalculator),
``.../mamba/abstract.py`` and ``mamba_mixer2.py`` (get_kv_cache_spec), without speculative tokens and ReplaySSM.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.errors import LayoutError
from kvlayout.facts.layers import Serving
from kvlayout.facts.parallel import split_evenly
from kvlayout.spec import MambaSpec
from kvlayout.versions import at_least

STATE_KINDS = frozenset({"mamba1", "mamba2", "gdn"})


@dataclass(frozen=True)
class _StateLayer:
    """What every state layer has: vLLM's name, the decoder layer's number, the recurrent state's element type.

    state_dtype None: as the convolution's, which is the model's.
    """

    name: str
    index: int
    state_dtype: str | None

    # Set by each kind: its name here, vLLM's name of its backend, and what it adds to the spec.
    kind = ""
    mamba_type = ""

    def shapes(self, tp_size: int) -> tuple[tuple[int, ...], ...]:
        """Return the state tensors' shapes on one rank."""
        raise NotImplementedError

    def spec(self, serving: Serving) -> MambaSpec:
        """Return one rank's spec: one block is one state; a block spans as many tokens as the cache mode says."""
        block_size = serving.block_size
        if serving.mamba_cache_mode == "none":
            if serving.max_model_len is None:
                raise LayoutError("max_model_len", None, f"is needed for the block of {self.name}",
                                  "Give max_model_len, or a config with max_position_embeddings")
            block_size = serving.max_model_len
        return MambaSpec(
            block_size=block_size, shapes=self.shapes(serving.tp_size),
            dtypes=(serving.dtype, self.state_dtype or serving.dtype), mamba_type=self.mamba_type,
            mamba_cache_mode=serving.mamba_cache_mode, **self._checkpoints(serving))

    def _checkpoints(self, serving: Serving) -> dict:
        return {}


@dataclass(frozen=True)
class Mamba1Layer(_StateLayer):
    """Mamba: (window, channels) of the convolution and (channels, state) of the recurrence."""

    intermediate_size: int
    state_size: int
    conv_kernel: int
    kind = "mamba1"
    mamba_type = "mamba1"

    def shapes(self, tp_size: int) -> tuple[tuple[int, ...], ...]:
        """Return ((kernel - 1, channels), (channels, state))."""
        channels = split_evenly("intermediate_size", self.intermediate_size, tp_size)
        return (self.conv_kernel - 1, channels), (channels, self.state_size)


@dataclass(frozen=True)
class Mamba2Layer(_StateLayer):
    """Mamba 2: (window, channels and groups) of the convolution and (heads, head_dim, state) of the recurrence."""

    intermediate_size: int
    num_groups: int
    num_heads: int
    head_dim: int
    state_size: int
    conv_kernel: int
    kind = "mamba2"
    mamba_type = "mamba2"

    def shapes(self, tp_size: int) -> tuple[tuple[int, ...], ...]:
        """Return ((kernel - 1, channels), (heads, head_dim, state)); a single group is on every rank."""
        if self.num_groups % tp_size and self.num_groups != 1:
            raise LayoutError("tp_size", tp_size, f"doesn't divide the {self.num_groups} Mamba groups",
                              "Use a divisor; only a single group is replicated")
        groups = max(self.num_groups, tp_size)
        channels = split_evenly("conv_dim", self.intermediate_size + 2 * groups * self.state_size, tp_size)
        heads = split_evenly("mamba_num_heads", self.num_heads, tp_size)
        return (self.conv_kernel - 1, channels), (heads, self.head_dim, self.state_size)

    def _checkpoints(self, serving: Serving) -> dict:
        # Its prefill can hand out the state at any token from 0.32 on.
        if not at_least(serving.vllm_version, "0.32.0"):
            return {}
        return dict(num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)


@dataclass(frozen=True)
class GatedDeltaNetLayer(_StateLayer):
    """Gated delta net: (window, channels) of the convolution and (value heads, value, key) of the state.

    With FlashInfer's prefill in "align" mode vLLM 0.33 also reserves a checkpoint block, which depends on the GPU
    and is left out here; it changes no page.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    kind = "gdn"
    mamba_type = "gdn_attn"

    def shapes(self, tp_size: int) -> tuple[tuple[int, ...], ...]:
        """Return ((kernel - 1, channels), (value heads, value, key))."""
        key_heads = split_evenly("linear_num_key_heads", self.num_key_heads, tp_size)
        value_heads = split_evenly("linear_num_value_heads", self.num_value_heads, tp_size)
        channels = 2 * key_heads * self.key_head_dim + value_heads * self.value_head_dim
        return (self.conv_kernel - 1, channels), (value_heads, self.value_head_dim, self.key_head_dim)
