"""What a scheduler could ask of a kernel: block tables, lengths, and the slots of new tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.slot_mapping import NULL_BLOCK

_MOST_NEW = 6  # tokens of one request that are new: an interpreted kernel takes milliseconds for each
_MOST_PROMPT = 256  # of a request that is written whole
_MOST_READ, _MOST_FAR = 1 << 20, 1 << 18  # elements of K and V that a case reads, about: each is accounted for
_LARGE_BLOCK = 1 << 17  # elements: far requests over larger ones have one block each


@dataclass(frozen=True, eq=False)
class Requests:
    """Some requests as the worker sees them; block ids are kernel blocks.

    Attributes:
        block_table: int32 [requests, columns]; what lies behind a request's own blocks is other requests' or block 0
        seq_lens: int32 [requests], tokens, at least 1
        slots: int64 [tokens], where the new tokens of all requests go; negative for a token that is to be ignored:
            mostly -1, as vLLM's scheduler gives it, sometimes another one, which vLLM's kernels skip as well
    """

    block_table: np.ndarray
    seq_lens: np.ndarray
    slots: np.ndarray


def draw_requests(rng: np.random.Generator, num_blocks: int, block_size: int, kernel_block_size: int,
                  token_elements: int = 1, is_prefill: bool = False) -> Requests:
    """Return one to three requests over a shuffled pool of ``num_blocks`` manager blocks; block 0 is never theirs.

    ``is_prefill``: all their tokens are new, up to 256 of each; else up to six are. ``token_elements``: of K and V of
    a token, all heads; requests are shorter where that makes them large.
    """
    ids = 1 + rng.permutation(num_blocks - 1)
    count = int(rng.integers(1, min(3, len(ids)) + 1))
    cuts = np.sort(rng.choice(np.arange(1, len(ids)), count - 1, replace=False)) if count > 1 else []
    return _requests(rng, [list(part) for part in np.split(ids, cuts)], block_size, kernel_block_size,
                     _MOST_READ // token_elements, _MOST_FAR // token_elements if is_prefill else 0)


def far_requests(rng: np.random.Generator, num_blocks: int, block_size: int, kernel_block_size: int,
                 token_elements: int = 1) -> Requests:
    """Return two requests whose blocks lie at both ends of a large pool and in its middle; four, of large blocks."""
    blocks_of = [[num_blocks - 1, 1], [num_blocks // 2 + 1, num_blocks - 2]]
    if block_size * token_elements > _LARGE_BLOCK:
        blocks_of = [[block] for blocks in blocks_of for block in blocks]
    return _requests(rng, blocks_of, block_size, kernel_block_size, _MOST_FAR // token_elements)


def _requests(rng, blocks_of: list[list[int]], block_size: int, kernel_block_size: int, most: int,
              prompt: int = 0) -> Requests:
    # The last block is mostly a partial one.
    seq_lens = [(len(blocks) - 1) * block_size + int(rng.integers(1, block_size + 1)) for blocks in blocks_of]
    slots = []
    for blocks, length in zip(blocks_of, seq_lens):
        new = max(int(rng.integers(1, _MOST_NEW + 1)), min(prompt, _MOST_PROMPT))
        first = max(0, length - new)
        slots += [blocks[position // block_size] * block_size + position % block_size
                  for position in range(first, length)]
    ignored = np.random.default_rng(slots).choice([-1, -1, -2, -block_size], 2)
    for slot in ignored[:int(rng.integers(0, 3))]:
        slots.insert(int(rng.integers(0, len(slots) + 1)), slot)
    longest = max(1, most // len(blocks_of))
    ratio = block_size // kernel_block_size
    columns = max(map(len, blocks_of)) * ratio + int(rng.integers(0, 3))
    table = np.full((len(blocks_of), columns), NULL_BLOCK, dtype=np.int32)
    for row, blocks in enumerate(blocks_of):
        own = (np.repeat(blocks, ratio) * ratio + np.tile(np.arange(ratio), len(blocks)))
        # A row is written over, never cleared: behind its end lie ids of requests that are gone.
        table[row] = rng.choice(own, columns) if rng.integers(2) else NULL_BLOCK
        table[row, :len(own)] = own
    return Requests(table, np.minimum(seq_lens, longest).astype(np.int32), np.array(slots, dtype=np.int64))
