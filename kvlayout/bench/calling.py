"""Calling a kernel under test: what it raises is told, what it was given must stay, torch's defaults are put back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence

import torch

from kvlayout.bench.case import Case
from kvlayout.bench.fault import Fault, input_changed, raised
from kvlayout.errors import LayoutError


def check_kernel(argument: str, kernel: object, by_place: Sequence[str], by_name: Iterable[str]) -> None:
    """Raise a LayoutError unless ``kernel`` can be called with such arguments, and does its work in the call."""
    if not callable(kernel):
        raise LayoutError(argument, kernel, "must be a function", "Wrap a Triton kernel in one that launches it")
    if hasattr(kernel, "run") and hasattr(type(kernel), "__getitem__"):  # kernel[grid](...)
        raise LayoutError(argument, kernel, "is a Triton kernel, which has to be launched over a grid",
                          "Wrap it in a function that launches it, as kvlayout.bench.examples.triton_writer does")
    for one in (kernel, type(kernel).__call__):
        if inspect.iscoroutinefunction(one) or inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise LayoutError(argument, kernel, "is a coroutine or a generator, whose body a call doesn't run",
                              "Give a plain function")
    try:
        signature = inspect.signature(kernel)
    except (TypeError, ValueError):  # one of C's, say, which doesn't tell what it takes
        return
    try:
        signature.bind(*by_place, **dict.fromkeys(by_name))
    except TypeError as error:
        raise LayoutError(argument, kernel, f"can't be called with {', '.join((*by_place, *by_name))}: {error}",
                          "Wrap it in a function of these; K and V of a cache that your kernel wants apart are "
                          "kv_cache[..., :head_size] and kv_cache[..., head_size:]") from None


def call_kernel(
    kernel: Callable, case: Case, view: torch.Tensor, given: dict[str, torch.Tensor],
    before: dict[str, torch.Tensor], call: Callable[[Callable], object]
) -> tuple[object, Fault | None]:
    """Return what ``call(kernel)`` returned, and what was wrong with the call itself, if anything.

    ``view``: the kv_cache that it is handed; ``given``: its other tensors by name, ``before``: their copies.
    """
    default, cache = torch.get_default_dtype(), _facts(view)
    try:
        returned = call(kernel)
        if view.is_cuda:
            torch.cuda.synchronize(view.device)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a kernel that ends the process, SystemExit, is a finding too
        return None, raised(case, error)
    finally:
        torch.set_default_dtype(default)
    return returned, input_changed(case, given, before, cache == _facts(view))


def _facts(view: torch.Tensor) -> tuple:
    """What a kernel may not change of the cache's tensor, which vLLM keeps: all but the bytes."""
    return (view.shape, view.dtype, view.device, view.layout, view.stride(), view.storage_offset(), view.data_ptr(),
            view.untyped_storage().nbytes())
