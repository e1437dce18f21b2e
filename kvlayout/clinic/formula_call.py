"""An offset formula, typed or a Python callable, as a function of the names in ``formula_names.NAMES``."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np

from kvlayout.arrays import integers
from kvlayout.clinic.expression import parse_expression
from kvlayout.clinic.formula_names import AXES, AXES_OF, NAMES
from kvlayout.errors import LayoutError

_FEW_STEPS = 16  # of an ordinary formula
# 4 EiB: no memory has such an address, and sums of two stay within 63 bits.
_MOST = 2**62


class Formula:
    """``used``: the names that it takes; ``axes``: the indices of a coordinate that they stand for.

    ``cost``: how many times as long as an ordinary formula it takes, at each coordinate; not known of a callable.
    """

    def __init__(self, argument: str, source: str | Callable):
        self._argument, self.cost = argument, 1
        if isinstance(source, str):
            try:
                self._work = parse_expression(source, NAMES)
            except LayoutError as error:
                raise LayoutError(argument, error.value, error.rule, error.cure) from None
            self.used, self.cost = self._work.used, max(1, self._work.steps // _FEW_STEPS)
        elif callable(source):
            self._work, self.used = source, _declared(argument, source)
        else:
            raise LayoutError(argument, source, "must be text or a function",
                              "Write for example layer_offset + block * block_stride")
        self.axes = frozenset(axis for name in self.used for axis in AXES_OF.get(name, ()))

    def __call__(self, values: dict[str, object], shape: tuple[int, ...]) -> np.ndarray:
        """Return its value at each point of a mesh of ``shape``, int64; ``values`` holds the names that it uses.

        Raises LayoutError for anything but whole numbers of at most 62 bits, one for each point or one for all.
        """
        try:
            given = self._work(**{name: values[name] for name in self.used})
        except LayoutError as error:
            raise LayoutError(self._argument, error.value, error.rule, error.cure) from None
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            raise LayoutError(self._argument, self._work, f"raised {type(error).__name__}: {said}",
                              "It gets int64 arrays: choose with numpy.where, not with if") from error
        try:
            found = integers(self._argument, given)
        except LayoutError:
            kind = getattr(given, "dtype", None) or type(given).__name__
            raise LayoutError(self._argument, self._work, f"gave {kind} where bytes must be whole numbers below 2^62",
                              "Divide with //, and return ints or an array of them") from None
        try:
            found = np.broadcast_to(found, shape)
        except ValueError:
            raise LayoutError(self._argument, self._work, f"gave an array of shape {found.shape} for a mesh "
                              f"[block, head, token, element] of {shape}",
                              "Return one number for each point, or one for all") from None
        if found.size and not -_MOST < found.min() <= found.max() < _MOST:
            raise LayoutError(self._argument, int(max(found.min(), found.max(), key=abs)),
                              "is beyond 62 bits: no memory has such an address")
        return found


def _declared(argument: str, work: Callable) -> frozenset[str]:
    """The names that a callable declares; all of them where it takes ``**kwargs``."""
    try:
        parameters = inspect.signature(work).parameters.values()
    except (TypeError, ValueError):
        raise LayoutError(argument, work, "doesn't say which names it takes",
                          "Wrap it: lambda block, block_stride: ...") from None
    used = set()
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            return frozenset(NAMES)
        if one.kind is one.VAR_POSITIONAL or (one.name not in NAMES and one.default is not one.empty):
            continue
        if one.name not in NAMES or one.kind is one.POSITIONAL_ONLY:
            raise LayoutError(argument, work, f"takes {one.name!r}, which is no name that can be given",
                              f"Use {', '.join(AXES)} and the sizes and strides of NAMES, by keyword")
        used.add(one.name)
    return frozenset(used)
