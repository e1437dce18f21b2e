"""The explorer's choices as Python over kvlayout: text that plans, asks one address, allocates and draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from kvlayout.captured import is_captured
from kvlayout.facts.backends import as_backend
from kvlayout.facts.machine import Machine
from kvlayout.plan import Plan
from kvlayout.selection import Selection
from kvlayout_widgets.figures.common import Coordinate


def kvlayout_code(plan: Plan, coordinate: Coordinate | None, backends: Iterable[object] = ()) -> str:
    """Return Python that makes ``plan`` again and asserts what is shown; ``backends`` are the user's own classes."""
    own = [one for one in backends if as_backend(one, plan.selection.vllm_version).name == plan.selection.backend]
    named = ", ".join(map(_expression, own))
    lines = ["from kvlayout import Selection, allocate_kv_cache, make_plan",
             *(["from kvlayout.facts.machine import Machine"] if plan.selection.machine != Machine() else []),
             "from kvlayout_widgets.figures.offsets import offsets_figure", *map(_import_line, own), "",
             f"selection = {_selection_code(plan.selection)}",
             f"plan = make_plan(selection{f', backends=[{named}]' if own else ''})",
             f'assert plan.layout.name == "{plan.layout.name}"']
    if coordinate is not None:
        lines += _address_lines(plan, coordinate)
    lines += ["", 'figure = offsets_figure(plan.address_map, rows="L", columns="B")',
              '# figure.savefig("offsets.png")']
    return "\n".join(lines) + "\n"


def _address_lines(plan: Plan, at: Coordinate) -> list[str]:
    address_map = plan.address_map
    offset = at.offset(address_map)
    group = address_map.region(at.layer).group
    owner = next(one for one in address_map.owners(offset) if one.group == group)
    return [
        "",
        f"offset = plan.address_map.offset({at.layer!r}, block={at.block}, head={at.head}, state={at.state}, "
        f"byte={at.byte})",
        f"assert offset == {offset}    # {offset:#x}",
        f"owner = plan.address_map.owners(offset)[{address_map.owners(offset).index(owner)}]",
        f'assert (owner.layer, owner.block, owner.field) == ({at.layer!r}, {at.block}, "{owner.field}")',
        "",
        f"with allocate_kv_cache(plan.config, {plan.selection.device!r}, plan.layout, plan.kernel_block_sizes,",
        "                       interiors=plan.interiors) as cache:",
        f"    page = cache.views[{at.layer!r}][{at.block}]    # [H, N, C] of one block",
        "    print(cache, page.shape, page.stride())",
    ]


def _selection_code(selection: Selection) -> str:
    """Return a constructor call with the choices that differ from the defaults; a capture is too long for one."""
    if is_captured(selection.model):
        return 'Selection.from_json(open("selection.json").read())    # the JSON below'
    chosen = {f.name: getattr(selection, f.name) for f in fields(selection)
              if f.name == "model" or getattr(selection, f.name) != f.default}
    shown = [f"{name}={value!r}" for name, value in chosen.items()]
    line = f"Selection({', '.join(shown)})"
    return line if len(line) <= 90 else "Selection(\n    " + ",\n    ".join(shown) + ",\n)"


def _class_of(backend: object) -> type:
    return backend if isinstance(backend, type) else type(backend)


def _import_line(backend: object) -> str:
    kind = _class_of(backend)
    if kind.__module__ == "__main__" or "." in kind.__qualname__:
        return f"# {kind.__qualname__} is the class that this explorer was given."
    return f"from {kind.__module__} import {kind.__qualname__}"


def _expression(backend: object) -> str:
    return _class_of(backend).__qualname__ + ("" if isinstance(backend, type) else "()")
