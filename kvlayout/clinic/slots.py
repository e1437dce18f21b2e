"""A slot's meaning: block, row, kernel block, and where its state lies in each layer and head slot.

A slot is a token's place in the pool of blocks: ``block * block_size + row``, all of them counts of tokens or
blocks. It is the same number whether blocks or kernel blocks are counted, but another place in each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlayout.errors import LayoutError, check_int

_MOST = 2**63 - 1


def decode_slot(slot: int, block_size: int, kernel_block_size: int | None = None) -> tuple[int | None, ...]:
    """Return (block, row) of a slot, or (block, row, kernel block, kernel row) with a kernel block size (tokens).

    A negative slot is a token that isn't stored: all None. Raises LayoutError unless ``kernel_block_size`` divides
    ``block_size``.
    """
    slot = check_slot("slot", slot)
    block_size = check_int("block_size", block_size, minimum=1)
    sizes = [block_size]
    if kernel_block_size is not None:
        sizes.append(check_int("kernel_block_size", kernel_block_size, minimum=1))
        if block_size % sizes[1]:
            raise LayoutError("kernel_block_size", kernel_block_size, f"must divide the block size {block_size}")
    if slot < 0:
        return (None, None) * len(sizes)
    return tuple(part for size in sizes for part in divmod(slot, size))


def context_parallel_slot(position: int, block_id: int, block_size: int, cp_size: int,
                          interleave: int = 1) -> tuple[int, int]:
    """Return (rank, slot) of a token position under decode context parallelism.

    ``block_id`` is the block table's entry ``position // (block_size * cp_size)``: one id on every rank.
    ``interleave`` tokens in a row go to one rank; as in vLLM it must divide ``block_size``. Only for sharded groups:
    replicated ones (sliding window, Mamba) keep ``block_id * block_size + position % block_size`` of their own table.
    """
    position, block_id = check_slot("position", position, 0), check_slot("block_id", block_id, 0)
    block_size = check_int("block_size", block_size, minimum=1)
    cp_size = check_int("cp_size", cp_size, minimum=1)
    interleave = check_int("interleave", interleave, minimum=1)
    if block_size % interleave:
        raise LayoutError("interleave", interleave, f"must divide the block size {block_size}",
                          "Use 1, or the block size for whole blocks")
    inside = position % (block_size * cp_size)
    chunk, row = divmod(inside, interleave)
    turn, rank = divmod(chunk, cp_size)
    return rank, block_id * block_size + turn * interleave + row


def usable_tokens(num_blocks: int, block_size: int) -> int:
    """Return how many tokens ``num_blocks`` blocks of ``block_size`` tokens can hold: block 0 is the null block."""
    blocks = check_int("num_blocks", num_blocks, minimum=0)
    return max(0, blocks - 1) * check_int("block_size", block_size, minimum=1)


@dataclass(frozen=True)
class SizeReading:
    """A slot as one block size has it; ``in_pool`` is None where the block count isn't known."""

    block_size: int
    block: int | None
    row: int | None
    num_blocks: int | None
    in_pool: bool | None
    line: str


def compare_block_sizes(slot: int, sizes: Sequence[int], num_blocks: int | Sequence[int] | None = None
                        ) -> list[SizeReading]:
    """Return the slot under each block size (tokens), in order.

    ``num_blocks``: blocks of the pool, one number for all sizes or one for each; None where it isn't known.
    """
    slot = check_slot("slot", slot)
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence) or not sizes:
        raise LayoutError("sizes", sizes, "must be a list of block sizes", "Give for example [16, 4]")
    counts = num_blocks if isinstance(num_blocks, (list, tuple)) else [num_blocks] * len(sizes)
    if len(counts) != len(sizes):
        raise LayoutError("num_blocks", num_blocks, f"must be one number, or {len(sizes)} of them")
    found = []
    for size, count in zip(sizes, counts):
        if count is not None:
            check_int("num_blocks", count, minimum=0)
        block, row = decode_slot(slot, size)
        if block is None:
            found.append(SizeReading(size, None, None, count, None, f"Slot {slot} is an ignored token."))
            continue
        inside = None if count is None else block < count
        line = f"Blocks of {size:,}: slot {slot:,} = block {block:,} x {size:,} + row {row:,}"
        line += "." if inside is None else f", inside the pool of {count:,} blocks." if inside else (
            f", OUT of the pool of {count:,} blocks.")
        found.append(SizeReading(size, block, row, count, inside, line))
    return found


def check_slot(argument: str, value: object, minimum: int = -_MOST) -> int:
    """Return a whole number that 63 bits hold; LayoutError otherwise."""
    number = check_int(argument, value, minimum=minimum)
    if number > _MOST:
        raise LayoutError(argument, value, "must be at most 2^63 - 1")
    return number
