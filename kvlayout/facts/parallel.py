"""What one rank holds: KV heads of a tensor-parallel rank, layers of a pipeline stage.

Source: vLLM 0.29.0 to 0.33.0, ``vllm/config/model.py`` (get_num_kv_heads, verify_with_parallel_config), the models'
own checks, ``vllm/distributed/utils.py`` (get_pp_indices).
"""

from __future__ import annotations

from kvlayout.errors import LayoutError, check_int


def kv_heads_per_rank(total_num_kv_heads: int, tp_size: int) -> int:
    """Return the KV heads of one tensor-parallel rank; each is on several ranks where there are fewer than ranks.

    LayoutError unless one of the two numbers divides the other.
    """
    check_int("num_key_value_heads", total_num_kv_heads, minimum=1)
    check_int("tp_size", tp_size, minimum=1)
    if max(total_num_kv_heads, tp_size) % min(total_num_kv_heads, tp_size):
        verb = "replicate" if tp_size > total_num_kv_heads else "divide"
        raise LayoutError("tp_size", tp_size, f"can't {verb} {total_num_kv_heads} KV heads evenly",
                          f"Use a divisor or a multiple of {total_num_kv_heads}")
    return max(1, total_num_kv_heads // tp_size)


def split_evenly(what: str, total: int, tp_size: int) -> int:
    """Return ``total / tp_size``; LayoutError naming ``what`` if it isn't whole."""
    if total % tp_size:
        raise LayoutError("tp_size", tp_size, f"doesn't divide {what}={total}")
    return total // tp_size


def get_pp_indices(num_hidden_layers: int, pp_rank: int, pp_size: int) -> tuple[int, int]:
    """Return the first layer of a pipeline stage and the one after its last.

    Layers that are left over go one each to the stages before the last, counted from the last but one backwards.
    """
    check_int("num_hidden_layers", num_hidden_layers, minimum=0)
    check_int("pp_size", pp_size, minimum=1)
    if check_int("pp_rank", pp_rank, minimum=0) >= pp_size:
        raise LayoutError("pp_rank", pp_rank, f"must be below pp_size={pp_size}")
    each, left_over = divmod(num_hidden_layers, pp_size)
    sizes = [each] * pp_size
    for stage in range(pp_size - 1 - left_over, pp_size - 1):
        sizes[stage] += 1
    start = sum(sizes[:pp_rank])
    return start, start + sizes[pp_rank]
