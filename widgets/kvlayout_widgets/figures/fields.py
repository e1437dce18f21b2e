"""What each byte holds, for whole arrays of located bytes: codes into a map's list of field names."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from kvlayout.address import AddressMap, Located
from kvlayout.region import Region

UNOWNED = -1


class FieldTable:
    """The field names of an address map, and the code (index into ``names``) of any located byte."""

    def __init__(self, address_map: AddressMap):
        self.names: tuple[str, ...] = tuple(dict.fromkeys(
            field.name for region in address_map.regions for field in region.interior.fields))
        self._index = {name: code for code, name in enumerate(self.names)}
        self._kinds = [self._head_kinds(region) for region in address_map.regions]

    def _head_kinds(self, region: Region) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Return (kind of each head slot, [(bytes where fields begin, their codes)] of each kind)."""
        kinds, of_head = {}, []
        for head in range(region.geometry.shape[2]):
            placed = tuple((begin, self._index[field.name]) for begin, field in region.interior.slot_fields(head))
            of_head.append(kinds.setdefault(placed, len(kinds)))
        return np.array(of_head), [tuple(np.array(part) for part in zip(*placed)) for placed in kinds]

    def codes(self, located: Located) -> np.ndarray:
        """Return the field code of each located byte, UNOWNED where it has no owner."""
        found = np.full(located.layer.shape, UNOWNED, dtype=np.int16)
        owned = located.layer >= 0
        for tensor in np.unique(located.tensor[owned]):
            here = owned & (located.tensor == tensor)
            of_head, kinds = self._kinds[tensor]
            if len(kinds) == 1:
                begins, codes = kinds[0]
                found[here] = codes[np.searchsorted(begins, located.byte[here], side="right") - 1]
                continue
            kind_here = of_head[located.head[here]]
            bytes_here, codes_here = located.byte[here], np.empty(int(here.sum()), dtype=np.int16)
            for kind, (begins, codes) in enumerate(kinds):
                mine = kind_here == kind
                codes_here[mine] = codes[np.searchsorted(begins, bytes_here[mine], side="right") - 1]
            found[here] = codes_here
        return found

    def code(self, name: str) -> int:
        """Return the code of a field name."""
        return self._index[name]


_tables: WeakKeyDictionary[AddressMap, FieldTable] = WeakKeyDictionary()


def field_table(address_map: AddressMap) -> FieldTable:
    """Return the map's field table; it is made once, since every redraw asks for it."""
    if address_map not in _tables:
        _tables[address_map] = FieldTable(address_map)
    return _tables[address_map]
