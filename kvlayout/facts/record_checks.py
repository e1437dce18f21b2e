"""Record which sizes and dtypes backends check by code of their own: ``python -m kvlayout.facts.record_checks``.

vLLM's base class answers ``supports_head_size``, ``supports_block_size``, ``supports_dtype`` and
``supports_kv_cache_dtype`` from the lists that are in ``data/backends-VERSION.json``. What a class answers instead is
read here, from the source alone: ``--source FOLDER --version V --out FOLDER`` writes ``checks-VERSION.json``.
"""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path

from kvlayout.facts import backend_source as source
from kvlayout.facts.catalogue import SUPPORTS, load
from kvlayout.facts.source_tree import NotConstant, SourceTree

SCRIPT = "python -m kvlayout.facts.record_checks"
OWN_CODE = "code that is not an expression"


class _Constants(ast.NodeTransformer):
    """Put a module's constants in place of their names."""

    def __init__(self, tree: SourceTree, module_name: str):
        self._tree, self._module = tree, module_name

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802, ast's own name
        try:
            value = self._tree.value(node, self._module)
        except NotConstant:
            return node
        return ast.parse(repr(tuple(value) if isinstance(value, list) else value), mode="eval").body


def read_checks(tree: SourceTree, path: str) -> dict[str, dict]:
    """Return {question: {"by": defining class, "branches": [...]}} of what a class doesn't leave to vLLM's base."""
    found = {}
    for question, method in SUPPORTS.items():
        owner, function = tree.find_method(path, method)
        if owner != source.BASE:
            found[question] = {"by": owner, "branches": _branches(tree, owner, method, function)}
    return found


def _branches(tree: SourceTree, owner: str, method: str, function: ast.FunctionDef) -> list[dict]:
    if not _is_plain(function.body):
        return [{"expression": OWN_CODE}]
    _, branches = source.read_branches(tree, owner, method)
    module_name, argument = owner.rpartition(".")[0], function.args.args[-1].arg
    constants = _Constants(tree, module_name)
    made = []
    for branch in branches:
        for part in ("when", "expression"):
            if branch.get(part) is not None:
                branch[part] = ast.unparse(constants.visit(ast.parse(branch[part], mode="eval")))
        if branch["when"] != f"{argument} is None":  # nobody asks about nothing
            made.append({part: value for part, value in branch.items() if value is not None})
    return made


def _is_plain(body: list[ast.stmt]) -> bool:
    """Whether a function is made of conditions and returns alone, beside its docstring."""
    for node in body:
        if isinstance(node, ast.If):
            if not (_is_plain(node.body) and _is_plain(node.orelse)):
                return False
        elif not isinstance(node, (ast.Return, ast.Expr)):
            return False
    return True


def main() -> None:
    """Read the command line and write ``checks-VERSION.json``."""
    parser = argparse.ArgumentParser(description="Record the checks of vLLM's attention backends.")
    parser.add_argument("--source", type=Path, required=True, help="folder that holds an unpacked vllm")
    parser.add_argument("--version", required=True, help="its version; its backends are recorded already")
    parser.add_argument("--out", type=Path, required=True, help="folder for checks-VERSION.json")
    options = parser.parse_args()
    tree = SourceTree(options.source, "vllm")
    # A composite asks its parts, which are read as themselves.
    checks = {one.class_path: read_checks(tree, one.class_path)
              for one in load(options.version).values() if not one.parts}
    lines = [f"  {json.dumps(path)}: {json.dumps(found, sort_keys=True)}" for path, found in sorted(checks.items())
             if found]
    text = (f'{{\n "vllm": {json.dumps(options.version)},\n "script": {json.dumps(SCRIPT)},\n "checks": {{\n'
            + ",\n".join(lines) + "\n }\n}\n")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"checks-{options.version}.json").write_text(text)
    print(f"{len(lines)} backends of vLLM {options.version} check by code of their own")


if __name__ == "__main__":
    main()
