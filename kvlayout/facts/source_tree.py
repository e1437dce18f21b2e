"""Classes and constants of an unpacked Python package, read with ``ast``; nothing is imported or run.

A class or constant is named by its dotted path, ``"vllm.v1.attention.backend.AttentionBackend"``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


class NotConstant(Exception):
    """An expression whose value isn't written in the source; the text says which."""


@dataclass
class Module:
    """The top-level names of one module, and every name imported anywhere inside it."""

    name: str
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


class SourceTree:
    """The modules of ``package`` below the folder ``root``, which holds the package's own folder."""

    def __init__(self, root: Path, package: str):
        self.root, self.package = Path(root), package
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """Return a module by dotted name; None where the package doesn't have it."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        file = self._file(name)
        if name.split(".")[0] != self.package or not file.is_file():
            return None
        tree, module = ast.parse(file.read_text()), Module(name)
        parts = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                origin = [*parts[:len(parts) - node.level + 1], node.module] if node.level else [node.module]
                for alias in node.names:
                    path = ".".join([*filter(None, origin), alias.name])
                    module.imports.setdefault(alias.asname or alias.name, path)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                module.classes[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                module.constants[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
                module.constants[node.target.id] = node.value
        return module

    @cached_property
    def module_names(self) -> list[str]:
        """Dotted names of all modules, in file order."""
        names = []
        for path in sorted((self.root / self.package).rglob("*.py")):
            parts = path.relative_to(self.root).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        return names

    def names_with(self, text: str) -> list[str]:
        """Return the modules whose source contains ``text``."""
        return [name for name in self.module_names if text in self._file(name).read_text()]

    def _file(self, name: str) -> Path:
        folder = self.root / Path(*name.split("."))
        return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")

    def resolve(self, module_name: str, name: str) -> str | None:
        """Return the dotted path that ``name`` stands for inside a module; None if it isn't this package's."""
        module = self.module(module_name)
        for _ in range(20):  # a name may be handed on through several modules
            if module is None:
                return None
            if name in module.classes or name in module.constants:
                return f"{module.name}.{name}"
            if name not in module.imports:
                return None
            origin, name = module.imports[name].rsplit(".", 1)
            module = self.module(origin)
        return None

    def class_def(self, path: str) -> ast.ClassDef | None:
        """Return the class at a dotted path; None where there is none."""
        module_name, _, name = path.rpartition(".")
        module = self.module(module_name) if module_name else None
        return module.classes.get(name) if module else None

    def lineage(self, path: str) -> list[str]:
        """Return the class and its bases inside the package in the order in which attributes are looked up.

        Exact where each base is reached one way only, as it is for every backend.
        """
        line, module_name = [path], path.rpartition(".")[0]
        for node in self.class_def(path).bases:
            base = self.resolve(module_name, node.id) if isinstance(node, ast.Name) else None
            if base is not None and self.class_def(base) is not None:
                line += self.lineage(base)
        return list(dict.fromkeys(line))

    def find_method(self, path: str, name: str) -> tuple[str, ast.FunctionDef] | None:
        """Return (defining class, function) of a method, as Python would find it; None where no class has it."""
        for owner in self.lineage(path):
            for node in self.class_def(owner).body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return owner, node
        return None

    def find_attribute(self, path: str, name: str) -> tuple[str, ast.expr] | None:
        """Return (defining class, expression) of a class attribute."""
        for owner in self.lineage(path):
            for node in self.class_def(owner).body:
                targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
                if any(isinstance(target, ast.Name) and target.id == name for target in targets) and node.value:
                    return owner, node.value
        return None

    def is_enum(self, path: str) -> bool:
        """Whether a class names an Enum of the standard library among its bases."""
        return any(ast.unparse(base) in ("Enum", "IntEnum") for base in self.class_def(path).bases)

    def value(self, expression: ast.expr, module_name: str) -> object:
        """Return the plain value of a constant expression: numbers, texts, lists (tuples too), dicts, and
        ``MultipleOf(n)`` as ``{"multiple_of": n}``, ``torch.float16`` as "float16", an enum member as its name.

        Raises NotConstant for anything that has to be run.
        """
        match expression:
            case ast.Constant():
                return expression.value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand, module_name)
            case ast.Tuple() | ast.List():
                return self._items(expression.elts, module_name)
            case ast.Call(func=ast.Name(id="MultipleOf"), args=[base], keywords=[]):
                return {"multiple_of": self.value(base, module_name)}
            case ast.Call(func=ast.Name(id="list" | "tuple"), args=[items], keywords=[]):
                return self.value(items, module_name)
            case ast.Name(id=name):
                path = self.resolve(module_name, name)
                if path is not None and self.class_def(path) is None:
                    owner, _, constant = path.rpartition(".")
                    return self.value(self.module(owner).constants[constant], owner)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return name
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                path = self.resolve(module_name, owner)
                found = self.find_attribute(path, name) if path and self.class_def(path) else None
                if found and self.is_enum(path):
                    return name
                if found:
                    return self.value(found[1], found[0].rpartition(".")[0])
        raise NotConstant(ast.unparse(expression))

    def _items(self, elements: list[ast.expr], module_name: str) -> list:
        items = []
        for element in elements:
            if isinstance(element, ast.Starred):
                items.extend(self.value(element.value, module_name))
            else:
                items.append(self.value(element, module_name))
        return items
