"""From block tables to slots, and from slots to the states that a write of those tokens touches.

A slot is a token's place in the pool of blocks: ``block * block_size + row``. A negative slot is a token that is
not stored. Source: vLLM 0.29.0 to 0.33.0, ``BlockTable.compute_slot_mapping`` (``vllm/v1/worker/block_table.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.spec import AttentionSpec, KVCacheSpec, layer_specs

NULL_BLOCK = 0


@dataclass(frozen=True, eq=False)
class Prediction:
    """The states that a write should touch in one group: the same in each of its layers and head slots.

    Attributes:
        group: index of the KV cache group
        layers: indices of its layers in ``AddressMap.layers``
        block, state: the pairs, without repeats, in order of block and state (kernel blocks where those split it)
        null_slots: slots that lie in block 0, the null block, and are left out: what is written there is no token
    """

    group: int
    layers: np.ndarray
    block: np.ndarray
    state: np.ndarray
    null_slots: int = 0

    @property
    def blocks(self) -> np.ndarray:
        """The blocks that hold such a state, sorted."""
        return np.unique(self.block)

    def cells(self, address_map: AddressMap) -> dict[str, np.ndarray]:
        """Return {"layer", "block", "head", "state"}: flat int64 arrays of every predicted cell."""
        parts = []
        for layer in self.layers:
            heads = np.arange(address_map.shape(int(layer))[1])
            head, index = (axis.ravel() for axis in np.meshgrid(heads, np.arange(len(self.block)), indexing="ij"))
            parts.append((np.full(len(head), layer), self.block[index], head, self.state[index]))
        columns = [np.concatenate(column) for column in zip(*parts)] if parts else [np.zeros(0, np.int64)] * 4
        return dict(zip(("layer", "block", "head", "state"), (column.astype(np.int64) for column in columns)))


def slots_of(block_table, positions, block_size: int) -> np.ndarray:
    """Return the int64 slot of each token position of a request, -1 where its block is the null block.

    ``block_table``: the group's block ids of that request, in order; ``block_size`` in tokens.
    """
    check_int("block_size", block_size, minimum=1)
    table, positions = integers("block_table", block_table, ndim=1), integers("positions", positions, ndim=1)
    index, row = np.divmod(positions, block_size)
    if len(positions) and (positions.min() < 0 or index.max() >= len(table)):
        wrong = int(positions.min() if positions.min() < 0 else positions.max())
        raise LayoutError("positions", wrong, f"must be at least 0 and in one of the {len(table)} blocks of "
                          f"{block_size} tokens in the block table")
    block = table[index]
    return np.where(block == NULL_BLOCK, -1, block * block_size + row)


def predict(address_map: AddressMap, group: int, slots=None, *, blocks=None) -> Prediction:
    """Return what a write of ``slots`` (tokens; negative ones are ignored) touches in ``group``.

    ``blocks`` instead of slots: all states of those blocks, for a group that keeps one state a block (Mamba).
    Raises LayoutError for a slot or block outside the pool, and for slots of a group that has none.
    """
    check_type("address_map", address_map, AddressMap)
    check_int("group", group, minimum=0)
    groups = address_map.config.kv_cache_groups
    if group >= len(groups):
        raise LayoutError("group", group, f"must be below the {len(groups)} groups")
    names = groups[group].layer_names
    layers = np.array([address_map.layer_index(name) for name in names], dtype=np.int64)
    if (slots is None) == (blocks is None):
        raise LayoutError("slots", slots, "must be given, or blocks instead of them, but not both")
    if not len(layers):
        return Prediction(group, layers, np.zeros(0, np.int64), np.zeros(0, np.int64))
    extents = address_map.shape(int(layers[0]))
    if blocks is not None:
        block = np.unique(integers("blocks", blocks))
        null, block = int((block == NULL_BLOCK).sum()), block[block != NULL_BLOCK]
        _check("blocks", block, extents[0])
        return Prediction(group, layers, np.repeat(block, extents[2]), np.tile(np.arange(extents[2]), len(block)),
                          null)
    spec = layer_specs(groups[group].kv_cache_spec, names)[names[0]]
    if not isinstance(spec, AttentionSpec):
        raise LayoutError("slots", group, f"{type(spec).__name__} keeps one state a block and has no slots",
                          "Give blocks=, the request's block table")
    size = (address_map.kernel_block_sizes or [None] * len(groups))[group] or spec.block_size
    slots = integers("slots", slots).ravel()
    slots = slots[slots >= 0]
    _check("slots", slots, extents[0] * size)
    is_null = slots // spec.block_size == NULL_BLOCK
    block, row = np.divmod(np.unique(slots[~is_null]), size)
    block, state = _states(block, row, spec)
    return Prediction(group, layers, block, state, int(is_null.sum()))


def _check(argument: str, numbers: np.ndarray, end: int) -> None:
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < end):
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise LayoutError(argument, int(wrong), f"must be at least 0 and below {end:,}, the end of the pool")


def _states(block: np.ndarray, row: np.ndarray, spec: KVCacheSpec) -> tuple[np.ndarray, np.ndarray]:
    """The states of token rows: several tokens may share one, or one token have several."""
    per_state = Fraction(spec.tokens_per_state)
    if per_state >= 1:
        pairs = np.unique(np.stack([block, row * per_state.denominator // per_state.numerator]), axis=1)
        return pairs[0], pairs[1]
    # int() is exact: SEMANTICS allows fractions of one token only as 1/n.
    each = int(1 / per_state)
    return np.repeat(block, each), (row[:, None] * each + np.arange(each)).ravel()
