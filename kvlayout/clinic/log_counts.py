"""Log lines that count: blocks, tokens, requests and memory.

vLLM 0.33.0 (``get_max_concurrency_for_kv_cache_config``): requests = blocks / the blocks that one request of
max_model_len takes from all groups together; tokens = int(requests x max_model_len). Before, tokens = blocks //
groups x the smallest block size. Both are tried.
"""

from __future__ import annotations

import math
from fractions import Fraction

from kvlayout.clinic.log_subject import (
    AGREES,
    DIFFERS,
    IMPOSSIBLE,
    UNKNOWN,
    Answer,
    Subject,
    blocks_a_request,
    exact,
    gib_bounds,
    gib_text,
    is_count,
)
from kvlayout.rounding import ceil_div

_RANKS = range(2, 65)  # of context parallelism, which multiplies the tokens


def _request(subject: Subject, tokens: int) -> tuple[int, int] | None:
    """The fewest and most blocks that one request takes from all groups."""
    bounds = [blocks_a_request(specs, tokens) for specs in subject.group_specs]
    if not bounds or None in bounds:
        return None
    return sum(low for low, _ in bounds), sum(high for _, high in bounds)


def _too_much(subject: Subject, blocks: int) -> str | None:
    """Why so many blocks can't be in the memory that the text or the selection gives, or None."""
    need = blocks * subject.bytes_per_block
    memory = subject.memory_bytes()
    if memory is not None and need > memory[1]:
        return (f"{blocks:,} blocks × {subject.bytes_per_block:,} bytes = {gib_text(need)}, more than the "
                f"{gib_text(memory[1])} that the text says are available")
    given = subject.plan.selection.available_memory if subject.plan else None
    if given is not None and need > given:
        return (f"{blocks:,} blocks × {subject.bytes_per_block:,} bytes = {need:,} bytes, more than the selection's "
                f"{given:,}")
    return None


def _blocks_answer(subject: Subject, name: str, said: str, blocks: int, how: str) -> Answer:
    """The answer where a line means ``blocks`` blocks, derived as ``how`` says."""
    ours = f"{subject.num_blocks:,} blocks"
    if blocks == subject.num_blocks:
        return Answer(name, said, ours, AGREES, f"{how}.")
    wrong = _too_much(subject, blocks)
    if wrong:
        return Answer(name, said, ours, IMPOSSIBLE, f"{how}, but {wrong}.")
    return Answer(name, said, ours, DIFFERS, f"{how}; ours has {subject.num_blocks:,}.")


def cache_size(values: dict, subject: Subject) -> Answer:
    """"GPU KV cache size: N tokens"."""
    name, tokens = "KV cache size", values["tokens"]
    said = f"{tokens:,} tokens"
    sizes = [spec.block_size for specs in subject.group_specs for spec in specs]
    if not sizes:
        return Answer(name, said, "no groups", IMPOSSIBLE, "Nothing is cached here: there is no group with layers.")
    groups, smallest = len(subject.group_specs), min(sizes)
    longest, source = subject.max_model_len()
    request = _request(subject, longest) if longest else None
    found = _current(tokens, longest, request, subject.num_blocks) if request else None
    ours = subject.num_blocks // groups * smallest
    if tokens == ours:
        per = f" // {groups} groups" if groups > 1 else ""
        return Answer(name, said, said, AGREES,
                      f"{subject.num_blocks:,} blocks{per} × {smallest} tokens = {tokens:,}.")
    if found is not None and found[0] == subject.num_blocks:
        return Answer(name, said, said, AGREES, f"int({found[0]:,} blocks / {found[1]:,} blocks a request × "
                      f"{longest:,} tokens) = {tokens:,} ({longest:,} {source}).")
    ranks = next((n for n in _RANKS if ours and tokens == ours * n), None)
    if ranks:
        blocks = tokens // smallest * groups
        wrong = _too_much(subject, blocks)
        sharded = f"{ranks} context-parallel ranks of {ours:,} tokens each"
        how = f"{sharded} would give it; on one rank, {wrong}" if wrong else \
            f"a pool of {blocks:,} blocks would give it, or {sharded}"
        return Answer(name, said, f"{ours:,} tokens", DIFFERS, f"It is {ranks} times ours: {how}.")
    if tokens % smallest == 0 and groups == 1:
        return _blocks_answer(subject, name, said, tokens // smallest,
                              f"{tokens:,} / {smallest} tokens a block = {tokens // smallest:,} blocks")
    if found is not None:
        return _blocks_answer(subject, name, said, found[0], f"{tokens:,} tokens are {found[0]:,} blocks / "
                              f"{found[1]:,} blocks a request × {longest:,} tokens")
    if request and request[0] < request[1] and _between(tokens, longest, request):
        low, high = (int(Fraction(subject.num_blocks, n) * longest) for n in (request[1], max(1, request[0])))
        if wrong := _too_much(subject, ceil_div(tokens * max(1, request[0]), longest)):
            return Answer(name, said, f"{low:,} to {high:,} tokens", IMPOSSIBLE,
                          f"Even with {request[0]:,} blocks for {longest:,} tokens, {wrong}.")
        verdict = UNKNOWN if low <= tokens <= high else DIFFERS
        return Answer(name, said, f"{low:,} to {high:,} tokens", verdict, f"{subject.num_blocks:,} blocks / "
                      f"{request[0]:,} to {request[1]:,} blocks a request × {longest:,} tokens; windows depend on "
                      "max_num_batched_tokens, which isn't known.")
    if request is None and groups == 1 and (example := _length_for(tokens, subject.num_blocks, smallest)):
        return Answer(name, said, f"{ours:,} tokens", UNKNOWN, f"It isn't whole blocks of {smallest} tokens; a "
                      f"max_model_len such as {example:,} would give it from {subject.num_blocks:,} blocks.")
    rule = f"{tokens:,} isn't a multiple of {smallest} tokens (remainder {tokens % smallest})" if tokens % smallest \
        else f"{tokens:,} isn't what any number of blocks gives"
    if request:
        rule += f", and no number of blocks gives it with {longest:,} tokens a request ({source})"
    return Answer(name, said, f"{ours:,} tokens", IMPOSSIBLE, f"{rule}.")


def _current(tokens: int, longest: int, request: tuple[int, int], blocks: int) -> tuple[int, int] | None:
    """(blocks, blocks a request) by which the current formula prints ``tokens``, our own blocks first; None if none.

    As floats, since vLLM rounds the quotient to one.
    """
    low, high = max(1, request[0]), max(1, request[1])
    first = max(low, blocks * longest // (tokens + 1) - 1)
    last = min(high, blocks * longest // tokens + 1) if tokens else high
    # Between both ends every count fits; at them it depends on the rounding.
    for each in (*range(first, min(first + 3, last) + 1), *range(max(first, last - 3), last + 1)):
        if int(blocks / each * longest) == tokens:
            return blocks, each
    if low == high:
        first = tokens * low // longest
        return next(((one, low) for one in range(first, first + 3) if int(one / low * longest) == tokens), None)
    return None


def _between(tokens: int, longest: int, request: tuple[int, int]) -> bool:
    """Whether some number of blocks can give ``tokens``: their steps are at most a block's."""
    return tokens * max(1, request[1]) >= longest or tokens == 0


def _length_for(tokens: int, blocks: int, block_size: int) -> int | None:
    """A max_model_len with which ``blocks`` blocks are printed as ``tokens``, or None."""
    short = blocks * block_size - tokens
    if short <= 0:
        return None
    for missing in range(1, min(block_size, 4096)):
        # ceil(blocks * missing / k) == short for k blocks a request, of which the last lacks ``missing`` tokens.
        each = ceil_div(blocks * missing, short)
        if each <= blocks and ceil_div(blocks * missing, each) == short and each * block_size > missing:
            return each * block_size - missing
    return None


def concurrency(values: dict, subject: Subject) -> Answer:
    """"Maximum concurrency for L tokens per request: T x"."""
    name, longest, times = "maximum concurrency", values["tokens"], exact(values["times"])
    said = f"{values['times']}x of {longest:,} tokens"
    request = _request(subject, longest) if longest else None
    if request is None:
        why = "A request of 0 tokens takes no blocks." if not longest else \
            "How many blocks a request takes depends on the encoder's length, which isn't known."
        return Answer(name, said, f"{subject.num_blocks:,} blocks", UNKNOWN if longest else IMPOSSIBLE, why)
    low, high = max(1, request[0]), max(1, request[1])
    least, most = max(Fraction(0), times - Fraction(1, 200)), times + Fraction(1, 200)
    ours = Fraction(subject.num_blocks, low)
    if low == high:
        shown = f"{float(ours):.2f}x"
        first, last = math.ceil(least * low), math.floor(most * low)
        how = f"{subject.num_blocks:,} blocks / {low:,} blocks a request = {shown}"
        if first <= subject.num_blocks <= last:
            return Answer(name, said, shown, AGREES, f"{how}.")
        if first > last:
            return Answer(name, said, shown, IMPOSSIBLE, f"A request takes {low:,} blocks, and no whole number of "
                          f"blocks divided by that is {values['times']}; {how}.")
        if wrong := _too_much(subject, first):
            return Answer(name, said, shown, IMPOSSIBLE,
                          f"{values['times']} × {low:,} blocks a request = {first:,}, but {wrong}.")
        count = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        return Answer(name, said, shown, DIFFERS, f"{how}; the line means {count} blocks.")
    shown = f"{float(Fraction(subject.num_blocks, high)):.2f}x to {float(ours):.2f}x"
    fewest = max(low, math.ceil(subject.num_blocks / most))
    if fewest <= high and (least == 0 or fewest <= subject.num_blocks / least):
        return Answer(name, said, shown, AGREES, f"{subject.num_blocks:,} blocks / {fewest:,} blocks a request = "
                      f"{float(Fraction(subject.num_blocks, fewest)):.2f}x; a request takes {low:,} to {high:,}, by "
                      "max_num_batched_tokens.")
    if wrong := _too_much(subject, math.ceil(least * low)):
        return Answer(name, said, shown, IMPOSSIBLE, f"Even with {low:,} blocks a request, {wrong}.")
    return Answer(name, said, shown, DIFFERS, f"{subject.num_blocks:,} blocks / {low:,} to {high:,} blocks a request "
                  f"= {shown}.")


def available_memory(values: dict, subject: Subject) -> Answer:
    """"Available KV cache memory: G GiB"."""
    name, gib = "available memory", exact(values["gib"])
    said, each = f"{values['gib']} GiB", subject.bytes_per_block
    ours = f"{subject.num_blocks:,} blocks, {gib_text(subject.num_blocks * each)}"
    if gib < 0:
        return Answer(name, said, ours, IMPOSSIBLE if subject.num_blocks else AGREES,
                      "No memory is left for the cache, not one block.")
    if not each:
        return Answer(name, said, ours, UNKNOWN, "A config without blocks doesn't say how many bytes one has.")
    low, high = (one // each for one in gib_bounds(gib))
    room = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    how = f"{values['gib']} GiB / {each:,} bytes a block = room for {room} blocks"
    if low <= subject.num_blocks <= high:
        return Answer(name, said, ours, AGREES, f"{how}, and there are {subject.num_blocks:,}.")
    override = subject.stated.get("num_gpu_blocks_override", {}).get("override")
    if override is not None and override == subject.num_blocks:
        return Answer(name, said, ours, AGREES, f"{how}; num_gpu_blocks_override sets {override:,} all the same.")
    if subject.num_blocks > high:
        return Answer(name, said, ours, IMPOSSIBLE, f"{how}, too few for {subject.num_blocks:,}; only "
                      "num_gpu_blocks_override goes beyond memory.")
    return Answer(name, said, ours, DIFFERS, f"{how}, more than the {subject.num_blocks:,} here: all ranks take the "
                  "smallest rank's count, or an override.")


def memory_needed(values: dict, subject: Subject) -> Answer:
    """"G GiB KV cache is needed, which is larger than the available KV cache memory (A GiB)"."""
    name, needed, available = "memory needed", exact(values["needed_gib"]), exact(values["available_gib"])
    said = f"{values['needed_gib']} GiB of {values['available_gib']} GiB"
    if needed < available:
        return Answer(name, said, "", IMPOSSIBLE, f"{values['needed_gib']} is not larger than "
                      f"{values['available_gib']}.")
    longest, source = subject.max_model_len()
    request = _request(subject, longest) if longest else None
    if request is None:
        return Answer(name, said, "", UNKNOWN,
                      "It needs max_model_len, which neither the text nor the selection says.")
    low, high = (blocks * subject.bytes_per_block for blocks in request)
    ours = gib_text(low) if low == high else f"{gib_text(low)} to {gib_text(high)}"
    least, most = gib_bounds(needed)
    verdict = AGREES if low <= most and least <= high else DIFFERS
    return Answer(name, said, ours, verdict, f"{request[0]:,} to {request[1]:,} blocks for {longest:,} tokens "
                  f"({source}) × {subject.bytes_per_block:,} bytes = {ours}.")


def override(values: dict, subject: Subject) -> Answer:
    """"Overriding num_gpu_blocks=N with num_gpu_blocks_override=M"."""
    name, profiled, chosen = "override of blocks", values["num_gpu_blocks"], values["override"]
    said, ours = f"{chosen:,} in place of {profiled:,}", f"{subject.num_blocks:,} blocks"
    memory, each = subject.memory_bytes(), subject.bytes_per_block
    given = subject.plan.selection.available_memory if subject.plan else None
    if memory is None and given is not None:
        memory = given, given
    if memory is not None and each:
        low, high = (one // each for one in memory)
        if not low <= profiled <= high:
            room = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            return Answer(name, said, ours, IMPOSSIBLE, f"{gib_text(memory[0])} / {each:,} bytes a block = {room} "
                          f"blocks, not the {profiled:,} that are overridden.")
    return _blocks_answer_plain(subject, name, said, chosen)


def num_gpu_blocks(values: dict, subject: Subject) -> Answer:
    """"# GPU blocks: N"."""
    blocks = values["num_gpu_blocks"]
    name, ours = "GPU blocks", f"{subject.num_blocks:,} blocks"
    if not is_count(blocks):
        return Answer(name, f"{blocks!r:.40} blocks", ours, IMPOSSIBLE, "It is no count of blocks.")
    return _blocks_answer(subject, name, f"{blocks:,} blocks", blocks, f"The line says {blocks:,} blocks")


def _blocks_answer_plain(subject: Subject, name: str, said: str, blocks: int) -> Answer:
    """An override goes beyond memory, so no memory makes it impossible; 0 blocks hold not even the null block."""
    ours = f"{subject.num_blocks:,} blocks"
    if not blocks:
        return Answer(name, said, ours, IMPOSSIBLE, "0 blocks leave no room for the null block, block 0.")
    verdict = AGREES if blocks == subject.num_blocks else DIFFERS
    return Answer(name, said, ours, verdict, f"The cache has num_gpu_blocks_override = {blocks:,} blocks, "
                  f"{gib_text(blocks * subject.bytes_per_block)}; ours has {subject.num_blocks:,}.")
