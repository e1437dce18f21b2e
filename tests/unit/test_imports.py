"""What may import what: the core stays light, and arrows point one way."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"kvlayout": ROOT / "kvlayout", "kvlayout_widgets": ROOT / "widgets" / "kvlayout_widgets"}
HEAVY = ("torch", "vllm", "matplotlib", "ipywidgets", "anywidget", "IPython", "typer", "rich", "tqdm")

# Who alone may import a package: modules whose name starts with one of these.
ONLY = {
    # Recorders run in vLLM's Python.
    "torch": ("kvlayout.memory", "kvlayout.bench", "kvlayout.upstream", "kvlayout.facts.record"),
    "vllm": ("kvlayout.upstream", "kvlayout.facts.record"),
    "matplotlib": ("kvlayout_widgets",),
    "ipywidgets": ("kvlayout_widgets",),
    "anywidget": ("kvlayout_widgets",),
    "kvlayout_widgets": ("kvlayout_widgets", "kvlayout.cli"),
    "typer": ("kvlayout.cli",),
    "rich": ("kvlayout.cli",),
    "kvlayout.upstream": ("kvlayout.upstream", "kvlayout.cli", "kvlayout.__main__", "kvlayout_widgets"),
}
# Rooms that don't know of each other: modules of the first import none of the rest.
APART = (
    ("kvlayout.memory", "kvlayout.clinic", "kvlayout.bench"),
    ("kvlayout.clinic", "kvlayout.memory", "kvlayout.bench"),
    ("kvlayout.bench", "kvlayout.clinic"),
    ("kvlayout_widgets.figures", "ipywidgets", "anywidget", "matplotlib.pyplot"),
)


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@cache
def modules() -> dict[str, Path]:
    """Return every module of both packages with its file."""
    found = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Return the full names that ``module`` imports anywhere in it, but for those that only a type checker reads."""
    path = modules()[module]
    names, todo = set(), [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            base = node.module or ""
            if node.level:
                parents = package.split(".")[:len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [node.module])])
            # "from package import name" reaches the module of that name where there is one.
            names |= {f"{base}.{alias.name}" for alias in node.names} | {base}
    return frozenset(names)


def importers(package: str) -> list[str]:
    return [module for module in modules() if any(is_in(name, package) for name in imports(module))]


def test_there_is_something_to_check():
    assert {"kvlayout", "kvlayout.layout", "kvlayout.placement"} <= set(modules())
    assert "kvlayout.errors" in imports("kvlayout.layout")


@pytest.mark.parametrize("package", ONLY)
def test_only_its_own_rooms_import(package):
    strangers = [module for module in importers(package) if not module.startswith(ONLY[package])]
    assert strangers == [], f"{strangers} import {package}; only {ONLY[package]} may"


@pytest.mark.parametrize("rooms", APART, ids=lambda rooms: rooms[0])
def test_rooms_apart(rooms):
    inside, *others = rooms
    wrong = [(module, other) for other in others for module in importers(other) if is_in(module, inside)]
    assert wrong == []


def test_pyplot_is_imported_nowhere():
    assert importers("matplotlib.pyplot") == []


def test_no_cycles():
    # A package's __init__ is imported before its modules by Python itself; the names that it offers come late.
    known = {module for module, path in modules().items() if path.name != "__init__.py"}
    graph = {module: imports(module) & known - {module} for module in known}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' <- '.join(error.args[1])}")


def test_modules_are_short():
    most = {**dict.fromkeys(modules().values(), 300), **dict.fromkeys((ROOT / "tests").rglob("*.py"), 400)}
    lines = {path: len(path.read_text().splitlines()) for path in most}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count >= most[path]} == {}


def python(code: str) -> str:
    """Run ``code`` in a new Python that sees the packages, and return what it prints."""
    setup = f"import sys; sys.path[:0] = {[str(folder.parent) for folder in SOURCES.values()]!r}; "
    done = subprocess.run([sys.executable, "-c", setup + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_imports_nothing_heavy():
    rooms = (*ONLY["torch"], *ONLY["vllm"], "kvlayout.cli", "kvlayout.__main__", "kvlayout_widgets")
    core = [module for module in modules() if not module.startswith(rooms)]
    loaded = python(f"import importlib\nfor name in {core!r}: importlib.import_module(name)\n"
                    f"print([name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_the_first_import_is_quick():
    def seconds(package: str) -> float:
        return float(python("import time; start = time.process_time(); "
                            f"import {package}; print(time.process_time() - start)"))

    # The least of several runs is what the import itself costs; the rest is what else the machine does.
    numpy, ours = (min(seconds(package) for _ in range(7)) for package in ("numpy", "kvlayout"))
    assert ours <= 1.5 * numpy + 0.030, f"import kvlayout takes {ours:.3f} s, import numpy {numpy:.3f} s"
