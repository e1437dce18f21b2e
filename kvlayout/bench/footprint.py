"""How many sectors or cache lines of memory a decode step touches, in closed form.

The unit of work is one head slot of one block (a program of a paged kernel reads a block's states of one head), so
what two units touch counts twice. Law: walking a unit's bytes in address order, a new line begins wherever a multiple
of its size lies between one byte and the next. Counted for all units at once: ``_Crossings.before(x)`` is how many
such multiples lie at or below byte x of the units, added up; it depends on where in a line the units begin, which is
counted first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvlayout.errors import check_int
from kvlayout.spec import KVCacheSpec
from kvlayout.strided import StridedSet

SECTOR_BYTES = 32
LINE_BYTES = 128


@dataclass(frozen=True)
class DecodeShape:
    """One request's decode step in one layer: it writes its last token, then reads all ``context_tokens``.

    Every head slot of the spec is read once, for all query heads that share it (GQA). The request has the first
    blocks of the pool, and at most all of them; the allocation begins at a line's first byte.
    """

    context_tokens: int = 4096

    def __post_init__(self):
        check_int("context_tokens", self.context_tokens, minimum=1)

    def sentence(self, spec: KVCacheSpec, num_blocks: int) -> str:
        """Return what such a step reads and writes in one layer of ``spec`` and a pool of blocks, in words."""
        heads, content = spec.num_heads, spec.state_content_size_bytes
        if spec.tokens_per_state <= 0:
            return f"A decode step reads and writes one recurrent state of {heads * content:,} bytes a layer."
        slots = f"{heads} head slot{'s' if heads > 1 else ''}"
        tokens = min(self.context_tokens, num_blocks * spec.block_size)
        asked = "" if tokens == self.context_tokens else \
            f" (of {self.context_tokens:,} asked: the pool of {num_blocks:,} blocks has no room for more)"
        return (f"A decode step at {tokens:,} tokens{asked} reads {slots} of {content:,} bytes a state, each "
                "once for all query heads that share it, and writes the last token's.")


def touched_by_read(spec: KVCacheSpec, shape: tuple, strides: tuple, decode: DecodeShape, line_bytes: int) -> int:
    """Return the lines of ``line_bytes`` that a decode read touches; shape, byte strides: of (L, B, H, N, C)."""
    if spec.tokens_per_state <= 0:  # a recurrent state is one block, whatever the context
        return _touched(range(1), shape, strides, shape[3], line_bytes)
    full, rest = divmod(_tokens(spec, shape, decode), spec.block_size)
    found = _touched(range(full), shape, strides, shape[3], line_bytes)
    return found + _touched(range(full, full + 1), shape, strides, spec.get_num_kernel_states(rest), line_bytes)


def touched_by_write(spec: KVCacheSpec, shape: tuple, strides: tuple, decode: DecodeShape, line_bytes: int) -> int:
    """Return the lines of ``line_bytes`` that writing the step's token touches, as :func:`touched_by_read`."""
    block, first, count = 0, 0, 1
    if spec.tokens_per_state > 0:
        block, token = divmod(_tokens(spec, shape, decode) - 1, spec.block_size)
        # A token of a block whose last state isn't full yet belongs to the last one that there is.
        first = min(int(token // spec.tokens_per_state), shape[3] - 1)
        count = max(1, min(int((token + 1) // spec.tokens_per_state), shape[3]) - first)
    return _touched(range(block, block + 1), shape, strides, count, line_bytes, first * strides[3])


def _tokens(spec: KVCacheSpec, shape: tuple, decode: DecodeShape) -> int:
    return min(decode.context_tokens, shape[1] * spec.block_size)


def _touched(blocks: range, shape: tuple, strides: tuple, states: int, line_bytes: int, start: int = 0) -> int:
    """Lines that ``states`` states from byte ``start`` on touch in each head slot of each of ``blocks``."""
    if not blocks or not states:
        return 0
    begins = _residues(len(blocks), strides[1], line_bytes)
    begins = _added(begins, _residues(shape[2], strides[2], line_bytes))
    begins = np.roll(begins, (start + blocks.start * strides[1]) % line_bytes)
    cell = StridedSet(0, (states, shape[4]), strides[3:])
    (steps, stride), (inner_steps, inner_stride) = _two_axes(cell)
    crossings = _Crossings(begins, line_bytes)
    # Starts of the outer steps; where in a line they begin repeats after ``period`` of them.
    period = min(steps, line_bytes // math.gcd(stride, line_bytes))
    starts = np.arange(period, dtype=np.int64) * (stride % line_bytes)
    reach = (inner_steps - 1) * inner_stride
    inner = crossings.between(starts, reach, inner_steps - 1, inner_stride)
    gaps = crossings.between(starts + reach, stride - reach, 1, stride - reach)
    total = crossings.units + int(inner @ _times(steps, period))
    return total + int(gaps @ _times(steps - 1, period))


def _two_axes(cell: StridedSet) -> tuple[tuple[int, int], tuple[int, int]]:
    """(steps, byte stride) of the outer and the inner axis that move the address; one step of 1 where none does."""
    axes = [(cell.extents[axis], cell.strides[axis]) for axis in cell.walk]
    axes = [(1, 1)] * (2 - len(axes)) + axes
    return axes[0], axes[1]


def _times(steps: int, period: int) -> np.ndarray:
    """How often each of the first ``period`` steps is met in ``steps`` of them."""
    full, rest = divmod(steps, period)
    return full + (np.arange(period) < rest).astype(np.int64)


def _residues(steps: int, stride: int, line_bytes: int) -> np.ndarray:
    """[line_bytes]: how many of ``steps`` multiples of ``stride`` begin at each byte of a line."""
    period = min(steps, line_bytes // math.gcd(stride, line_bytes))
    at = np.arange(period, dtype=np.int64) * (stride % line_bytes) % line_bytes
    found = np.zeros(line_bytes, dtype=np.int64)
    np.add.at(found, at, _times(steps, period))
    return found


def _added(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The same of all sums of one from each."""
    found = np.zeros_like(first)
    for at in np.flatnonzero(second):
        found += second[at] * np.roll(first, at)
    return found


class _Crossings:
    """``begins`` [line_bytes]: how many units begin at each byte of a line."""

    def __init__(self, begins: np.ndarray, line_bytes: int):
        self.units = int(begins.sum())
        self._line = line_bytes
        # Units that have passed one more multiple at byte y of a line: those that begin at line_bytes - y or later.
        self._passed = np.concatenate([[0], np.cumsum(begins[::-1])[:-1]])

    def before(self, x: np.ndarray) -> np.ndarray:
        """Multiples of the line's size up to byte ``x`` of each unit, all units together."""
        return self.units * (x // self._line) + self._passed[x % self._line]

    def between(self, x: np.ndarray, reach: int, steps: int, stride: int) -> np.ndarray:
        """Lines begun in ``steps`` steps of ``stride`` from each byte of ``x`` on, ``reach`` bytes in all."""
        if stride >= self._line:  # each step leaves its line
            return np.full(len(x), steps * self.units, dtype=np.int64)
        return self.before(x + reach) - self.before(x)
