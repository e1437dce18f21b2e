"""States that were to be written and are as before: in blocks used again, the same token gives the same bytes.

Layer 0's K and V depend on the token and its position alone, so in a small vocabulary this is common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.errors import check_type
from kvlayout.slot_mapping import Prediction
from kvlayout.snapshot import Changes, Snapshot

_MOST_BYTES = 1 << 20  # of states that are looked at at once; each byte takes some 50 bytes of indices


def rewritten_states(address_map: AddressMap, before: Snapshot, changes: Changes,
                     predictions: Sequence[Prediction]) -> np.ndarray:
    """Return the predicted states that held something ``before`` and didn't change, for ``kvlayout.landing.land``.

    int64 rows (layer, block, head, state). Whether such a state was written again with equal bytes, or not at all,
    its bytes can't tell; one that held zeros and didn't change isn't among them.
    """
    for name, value, kind in (("address_map", address_map, AddressMap), ("before", before, Snapshot),
                              ("changes", changes, Changes), ("predictions", predictions, Sequence)):
        check_type(name, value, kind)
    rows = [np.zeros((0, 4), dtype=np.int64)]
    for one in predictions:
        for layer in one.layers.tolist():
            _, heads, _, content = address_map.shape(layer)
            step = max(1, _MOST_BYTES // max(1, content))
            for head in range(heads):
                for start in range(0, len(one.block), step):
                    block, state = one.block[start:start + step], one.state[start:start + step]
                    offsets = address_map.offset(layer, block[:, None], head, state[:, None], np.arange(content))
                    same = ~changes.at(offsets).any(axis=1)
                    same[same] = before.holds(offsets[same]).any(axis=1)
                    rows.append(np.stack([np.full(same.sum(), layer), block[same], np.full(same.sum(), head),
                                          state[same]], axis=1))
    return np.concatenate(rows)
