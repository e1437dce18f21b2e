"""Arithmetic on int64 arrays that finds what passes 63 bits, where numpy would wrap without a word.

Each function takes first a mask of the points that count: elsewhere a wrong step is nobody's.
"""

from __future__ import annotations

import ast
import operator
from functools import reduce

import numpy as np


class ExactError(ArithmeticError):
    """A step that has no value in 63 bits; the text says which numbers met."""


def _refuse(bad, taken, what: str, *operands) -> None:
    bad = np.asarray(bad & taken)
    if bad.any():
        bad = np.broadcast_to(bad, np.broadcast_shapes(bad.shape, *map(np.shape, operands)))
        first = np.unravel_index(int(np.argmax(bad)), bad.shape)
        shown = tuple(f"{int(np.broadcast_to(value, bad.shape)[first]):,}" for value in operands)
        raise ExactError(what.format(*shown))


def _checked(sign: str, work):
    def run(taken, a, b):
        with np.errstate(over="ignore"):
            found = np.asarray(work(a, b))
        # A wrapped result is off by a multiple of 2^64, far more than what float64 rounds away.
        about = work(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
        _refuse(np.abs(about - found.astype(np.float64)) > 2.0**62, taken, f"passes 63 bits: {{}} {sign} {{}}", a, b)
        return found
    return run


def _divided(sign: str, work):
    def run(taken, a, b):
        _refuse(b == 0, taken, f"divides by zero: {{}} {sign} {{}}", a, b)
        if sign == "//":
            _refuse((a == np.iinfo(np.int64).min) & (b == -1), taken, "passes 63 bits: {} // {}", a, b)
        with np.errstate(over="ignore"):
            return work(a, np.where(b == 0, 1, b))
    return run


def _shifted(sign: str, work):
    def run(taken, a, b):
        _refuse((b < 0) | (b > 62), taken, f"shifts by less than 0 or more than 62: {{}} {sign} {{}}", a, b)
        by = np.clip(b, 0, 62)
        found = work(a, by)
        if sign == "<<":
            _refuse((found >> by) != a, taken, "passes 63 bits: {} << {}", a, b)
        return found
    return run


def _plain(work):
    return lambda taken, *operands: np.asarray(work(*operands)).astype(np.int64)


def _negated(taken, a):
    return _checked("-", operator.sub)(taken, np.int64(0), a)


def _absolute(taken, a):
    return np.where(a < 0, _negated(taken & (a < 0), a), a)


def _int32(taken, a):
    return ((a & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


OPERATORS = {
    ast.Add: _checked("+", operator.add), ast.Sub: _checked("-", operator.sub), ast.Mult: _checked("*", operator.mul),
    ast.FloorDiv: _divided("//", operator.floordiv), ast.Mod: _divided("%", operator.mod),
    ast.LShift: _shifted("<<", operator.lshift), ast.RShift: _shifted(">>", operator.rshift),
    ast.BitAnd: _plain(operator.and_), ast.BitOr: _plain(operator.or_), ast.BitXor: _plain(operator.xor),
    ast.Eq: _plain(operator.eq), ast.NotEq: _plain(operator.ne), ast.Lt: _plain(operator.lt),
    ast.LtE: _plain(operator.le), ast.Gt: _plain(operator.gt), ast.GtE: _plain(operator.ge),
    ast.USub: _negated, ast.UAdd: _plain(operator.pos), ast.Invert: _plain(operator.invert),
    ast.Not: _plain(lambda a: a == 0),
}

_MANY = 1_000
# name: (function, least arguments, most)
FUNCTIONS = {
    "min": (lambda taken, *values: reduce(np.minimum, values), 2, _MANY),
    "max": (lambda taken, *values: reduce(np.maximum, values), 2, _MANY),
    "abs": (_absolute, 1, 1),
    "int32": (_int32, 1, 1),
    "uint32": (_plain(lambda a: a & 0xFFFFFFFF), 1, 1),
    "int64": (_plain(lambda a: a), 1, 1),
}
