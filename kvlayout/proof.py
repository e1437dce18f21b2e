"""What a proof by memory found: how much was checked, how fast, and each difference with its coordinate."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MOST_BINS = 256


@dataclass(frozen=True)
class Mismatch:
    """One place where memory doesn't hold what the address map says.

    Attributes:
        group: whose layers had been written
        offset: bytes from the start of the allocation to the first differing byte of the place
        layer, block, head, state, byte, field: whose byte it is by the address map; ``layer`` is None, and the rest
            no meaning, for padding
        expected, found: the place's bytes; padding is expected to stay zero
        written_by: (layer, block, head, state, byte) whose view wrote ``found`` there; None where none did
    """

    group: int
    offset: int
    layer: str | None
    block: int
    head: int
    state: int
    byte: int
    field: str
    expected: bytes
    found: bytes
    written_by: tuple[str, int, int, int, int] | None = None

    def __str__(self) -> str:
        whose = "padding" if self.layer is None else _spelt(self.layer, self.block, self.head, self.state, self.byte)
        writer = "" if self.written_by is None else f", which the view wrote for {_spelt(*self.written_by)}"
        return (f"byte {self.offset:,} ({whose}): expected {self.expected.hex()}, found {self.found.hex()}{writer}")


@dataclass(frozen=True, eq=False)
class MismatchMap:
    """Where wrong bytes lie: ``wrong_bytes`` [layers, bins] int64, each bin ``blocks_per_bin`` blocks wide."""

    layers: tuple[str, ...]
    blocks_per_bin: int
    wrong_bytes: np.ndarray


@dataclass(frozen=True, eq=False)
class Report:
    """The result of ``verify``.

    Attributes:
        bytes_checked: owned bytes that were written through views and compared, all groups together
        padding_bytes: bytes that no layer of the group owns, checked to be untouched, all groups together
        seconds: for everything
        passes: times that each byte was written; several where cells are too narrow to tell all pages apart at once
        mismatched_bytes: how many bytes differ
        mismatches: the first of them, in address order within a group
        map: where they lie; None if there are none
        device: where the cache lies
        decoded_bytes: differing bytes that ``map`` and ``mismatches`` were made from; less than ``mismatched_bytes``
            only beyond a limit
    """

    bytes_checked: int
    padding_bytes: int
    seconds: float
    passes: int
    mismatched_bytes: int
    mismatches: tuple[Mismatch, ...] = ()
    map: MismatchMap | None = None
    device: str = "cpu"
    decoded_bytes: int = field(default=0)

    @property
    def ok(self) -> bool:
        """Whether every byte lies where the address map says."""
        return self.mismatched_bytes == 0

    @property
    def gib_per_second(self) -> float:
        """Bytes checked a second, in GiB, each pass counted."""
        return self.bytes_checked * self.passes / 2**30 / self.seconds if self.seconds else 0.0

    @property
    def summary(self) -> str:
        """One sentence with the numbers."""
        speed = f"{self.seconds:.2f} s, {self.gib_per_second:.1f} GiB/s on {self.device}"
        padding = f", and {self.padding_bytes:,} bytes of padding stayed untouched" if self.padding_bytes else ""
        if self.ok:
            return (f"All {self.bytes_checked:,} bytes that were written through the views lie where the address map "
                    f"says{padding} ({speed}).")
        return (f"{self.mismatched_bytes:,} bytes differ, of {self.bytes_checked:,} that were written through the "
                f"views ({speed}). The first: {self.mismatches[0]}.")


def _spelt(layer: str, block: int, head: int, state: int, byte: int) -> str:
    return f"{layer}, block {block:,}, head {head}, state {state}, byte {byte}"
