"""Whether a backend takes a head size, block size or dtype, where its class checks that by code of its own.

The checks are read from vLLM's source (``python -m kvlayout.facts.record_checks``) as branches. What follows from the
value and the platform is decided here; what asks a library or the machine's hardware stays open, and is shown.
"""

from __future__ import annotations

import ast
import json
import operator
from functools import cache
from importlib.resources import files

from kvlayout.bench.outcomes import decide
from kvlayout.facts.catalogue import Backend, Branch
from kvlayout.facts.kv_dtypes import kv_cache_dtypes, resolve_kv_cache_dtype

_COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda value, among: value in among, ast.NotIn: lambda value, among: value not in among,
}


class _Open(Exception):
    """A part of a check that neither the value nor the platform decides; the text is that part."""


def own_check(backend: Backend, question: str) -> tuple[Branch, ...]:
    """Return the branches of a class's own check; empty where vLLM's base class answers from the lists."""
    return _checks(backend.vllm_version).get((backend.class_path, question), ())


def passes(backend: Backend, question: str, value: object, platform: str | None,
           by_lists: bool | None) -> tuple[bool | None, str]:
    """Return (can, why not or what it depends on) by the class's own check; can is None where it depends.

    ``by_lists``: the base class's answer, which some checks fall back on; None where that depends.
    """
    ways, refusals, depends = [], [], []
    for branch in own_check(backend, question):
        holds, open_part = _truth(branch.when, question, value, backend, platform, by_lists)
        if holds is False:
            continue
        found, also_open = branch.value, []
        if branch.expression is not None:
            found, also_open = _truth(branch.expression, question, value, backend, platform, by_lists)
        ways.append(found)
        depends += [*open_part, *also_open]
        if found is False:
            refusals += [f"wants {branch.expression}"] if branch.expression is not None else []
            refusals += [f"refuses {branch.when}"] if branch.expression is None and branch.when is not None else []
        if holds:
            break
    answer = ways[0] if len(set(ways)) == 1 else None
    told = depends if answer is None else refusals or ["takes no such one"]
    return answer, " and ".join(dict.fromkeys(told))


def _truth(text: str | None, question: str, value: object, backend: Backend, platform: str | None,
           by_lists: bool | None) -> tuple[bool | None, list[str]]:
    if text is None:
        return True, []
    try:
        return bool(_value(ast.parse(text, mode="eval").body, question, value, backend, platform, by_lists)), []
    except _Open as error:
        return None, [str(error)]


def _value(node: ast.expr, *known) -> object:
    """The value of an expression; _Open names the part that can't be known."""
    question, value, backend, platform, by_lists = known
    text = ast.unparse(node)
    if text == question:
        return value
    if text == "cls.supported_kv_cache_dtypes":
        return backend.kv_cache_dtypes
    if text == f"super().supports_{question}({question})" and by_lists is not None:
        return by_lists
    if text == f"is_quantized_kv_cache({question})" and value in kv_cache_dtypes(backend.vllm_version):
        return resolve_kv_cache_dtype(value, "bfloat16", backend.vllm_version).is_quantized
    match node:
        case ast.Constant():
            return node.value
        case ast.Tuple() | ast.List() | ast.Set():
            return [_value(one, *known) for one in node.elts]
        case ast.BoolOp():
            return _joint(node, *known)
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, *known)
        case ast.BinOp(op=ast.Mod()):
            return _value(node.left, *known) % _value(node.right, *known)
        case ast.Compare(ops=[op], comparators=[right]):
            return _COMPARE[type(op)](_value(node.left, *known), _value(right, *known))
        case ast.Call(func=ast.Name(id="int"), args=[one]):
            return int(_value(one, *known))
        case ast.Call(func=ast.Attribute(value=one, attr="startswith"), args=[start]):
            return _value(one, *known).startswith(_value(start, *known))
    found = decide(node, platform)
    if found is None:
        raise _Open(text)
    return found


def _joint(node: ast.BoolOp, *known) -> bool:
    """``and`` and ``or``: one part may settle it though another is open."""
    settles, open_ = isinstance(node.op, ast.Or), []
    for part in node.values:
        try:
            if bool(_value(part, *known)) is settles:
                return settles
        except _Open as error:
            open_.append(str(error))
    if open_:
        raise _Open(open_[0])
    return not settles


@cache
def _checks(vllm_version: str) -> dict[tuple[str, str], tuple[Branch, ...]]:
    text = (files("kvlayout.facts") / "data" / f"checks-{vllm_version}.json").read_text()
    return {(path, question): tuple(Branch(one.get("when"), one.get("value"), one.get("expression"))
                                    for one in check["branches"])
            for path, found in json.loads(text)["checks"].items() for question, check in found.items()}
