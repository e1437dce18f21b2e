"""What vLLM's attention backends declare, read from its source without importing it.

A method such as ``supported_kv_cache_layouts`` becomes a list of branches, in order, the first whose condition holds
being the answer: ``{"when": condition or None, "value": constant}``, or ``"expression": text`` where the value has to
be computed. The default answer is that of a machine where every probe of hardware, environment, configuration and
spec says no: a CPU without accelerator, before any model is chosen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kvlayout.facts.machine import Machine, holds
from kvlayout.facts.source_tree import NotConstant, SourceTree

BASE = "vllm.v1.attention.backend.AttentionBackend"
COMPOSITE = "vllm.v1.attention.backends.composite.create_composite_attention_backend"
REGISTRY = "vllm.v1.attention.backends.registry"
ENUMS = {"AttentionBackendEnum": "attention", "MambaAttentionBackendEnum": "mamba"}

# Words in a class path that name the hardware, for backends that no platform module lists.
_PLATFORM_WORDS = {
    "rocm": ("rocm", "aiter", ".amd."),
    "xpu": ("xpu",),
    "cpu": (".cpu.", "cpu_", "amx"),
    "cuda": (".nvidia.", "flashinfer", "flashmla", "flash_attn", "flashattn", "cutlass", "b12x", "hpc", "tokenspeed"),
}


def read_enums(tree: SourceTree) -> dict[str, dict[str, str | None]]:
    """Return {"attention": {name: class path}, "mamba": {...}}; a name without a class has "" or None."""
    registry = tree.module(REGISTRY)
    enums = {}
    for name, kind in ENUMS.items():
        assigns = [node for node in registry.classes[name].body if isinstance(node, ast.Assign)]
        enums[kind] = {node.targets[0].id: tree.value(node.value, REGISTRY) for node in assigns}
    return enums


def read_composites(tree: SourceTree) -> dict[str, dict]:
    """Return {class path: its parts and arguments} of the backends that are two others under one name."""
    composites = {}
    for module_name in tree.names_with("create_composite_attention_backend"):
        module = tree.module(module_name)
        for name, node in module.constants.items():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if module.imports.get(node.func.id) != COMPOSITE:
                continue
            arguments = {}
            for keyword in node.keywords:
                if keyword.arg in ("backend_name", "head_sizes", "kernel_block_sizes"):
                    arguments[keyword.arg] = tree.value(keyword.value, module_name)
            parts = [tree.resolve(module_name, argument.id) for argument in node.args]
            composites[f"{module_name}.{name}"] = {"parts": parts, **arguments}
    return composites


def find_backends(tree: SourceTree) -> list[str]:
    """Return the class paths of all backends that can be used: subclasses of AttentionBackend that have a name."""
    found = []
    for module_name in tree.names_with("Backend"):
        for name in tree.module(module_name).classes:
            path = f"{module_name}.{name}"
            if BASE not in tree.lineage(path)[1:] or name.startswith("_"):
                continue
            owner, _ = tree.find_method(path, "get_name")
            if owner != BASE:
                found.append(path)
    return found


def read_branches(tree: SourceTree, path: str, method: str) -> tuple[str, list[dict]]:
    """Return (defining class, branches) of a method that takes no decision at run time but the branches'."""
    found = tree.find_method(path, method)
    if found is None:
        raise NotConstant(f"{path} has no {method}()")
    owner, function = found
    module_name = owner.rpartition(".")[0]
    branches = []
    for conditions, expression in _returns(function.body, ()):
        if ast.unparse(expression) == f"super().{method}()":
            _, inherited = read_branches(tree, tree.lineage(owner)[1], method)
            branches += [{**one, "when": _join(conditions, one["when"])} for one in inherited]
            continue
        for more, choice in _choices(expression):
            branch = {"when": _join((*conditions, *more), None)}
            try:
                branch["value"] = tree.value(choice, module_name)
            except NotConstant:
                branch["expression"] = ast.unparse(choice)
            branches.append(branch)
    return owner, branches


def default_branch(branches: list[dict]) -> dict:
    """Return the branch that answers on a bare CPU machine."""
    return next(one for one in branches if holds(one["when"], Machine()))


def _returns(body: list[ast.stmt], conditions: tuple) -> Iterator[tuple[tuple, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Return):
            yield conditions, node.value
        elif isinstance(node, ast.If):
            yield from _returns(node.body, (*conditions, node.test))
            yield from _returns(node.orelse, conditions)


def _choices(expression: ast.expr) -> Iterator[tuple[tuple, ast.expr]]:
    """Spell out the first ``a if c else b`` inside an expression as two."""
    choice = next((node for node in ast.walk(expression) if isinstance(node, ast.IfExp)), None)
    if choice is None:
        yield (), expression
        return
    for conditions, value in (((choice.test,), choice.body), ((), choice.orelse)):
        text = ast.unparse(expression).replace(ast.unparse(choice), ast.unparse(value))
        yield conditions, ast.parse(text, mode="eval").body


def _join(conditions: tuple, text: str | None) -> str | None:
    parts = [*conditions, *([ast.parse(text, mode="eval").body] if text else [])]
    if not parts:
        return None
    return ast.unparse(parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts))


def read_platforms(tree: SourceTree) -> dict[str, list[str]]:
    """Return {enum name: platforms whose selection names it}; vision towers, which have no cache, are left out."""
    named: dict[str, list[str]] = {}
    for platform in ("cuda", "rocm", "cpu", "xpu"):
        source = ast.parse((tree.root / tree.package / "platforms" / f"{platform}.py").read_text())
        vision = {id(node) for function in ast.walk(source) if isinstance(function, ast.FunctionDef)
                  and "vit" in function.name for node in ast.walk(function)}
        names = [node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute) and id(node) not in vision
                 and ast.unparse(node.value) == "AttentionBackendEnum"]
        for name in dict.fromkeys(names):
            named.setdefault(name, []).append(platform)
    return named


def guess_platforms(path: str, enum: str | None) -> list[str]:
    """Return the platform that a class path or enum name speaks of; "any" where it speaks of none."""
    text = f"{path} {enum or ''}".lower()
    return next(([platform] for platform, words in _PLATFORM_WORDS.items() if any(word in text for word in words)),
                ["any"])
