"""A backend that is a class of the user's, or one of vLLM's own, asked instead of looked up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kvlayout.errors import LayoutError, check_type, raised
from kvlayout.facts.catalogue import Backend, load
from kvlayout.facts.repack import RULES
from kvlayout.interior import Interior
from kvlayout.kernel_blocks import supported_kernel_block_sizes
from kvlayout.layout import AXES, LAYOUT_ALIASES, KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.spec import KVCacheSpec, MultipleOf
from kvlayout.spec_io import as_spec
from kvlayout.steps import StepTable

BASE = "vllm.v1.attention.backend.AttentionBackend"


@dataclass(frozen=True)
class UserBackend(Backend):
    """A Backend whose answers come from ``asked``, a class or object; other facts are its vLLM base's, if any.

    ``plugin``: the package that registers it, by name and version; None for one that is given by hand.
    """

    asked: object = None
    plugin: str | None = None

    def supported_kv_cache_layouts(self) -> tuple[KVCacheLayout, ...] | None:
        """Return those of vLLM's layouts that the class declares, the only ones that a resolver knows; None for any.

        ResolutionError where it declares others alone; LayoutError as :meth:`declared_layouts`.
        """
        declared = self.declared_layouts()
        known = declared and tuple(one for one in declared if one.name in KVCacheLayout.__members__)
        if declared and not known:
            raise StepTable(KVCacheLayout.__members__).failure("backends-support", LayoutError(
                f"supported_kv_cache_layouts of {self.name}", [one.name for one in declared],
                "names no layout of vLLM's, so its resolver has none to choose",
                f"Force one with layout={declared[0].name!r}, or support one of "
                f"{', '.join(KVCacheLayout.__members__)}"))
        return known

    def declared_layouts(self) -> tuple[KVCacheLayout | PhysicalLayout, ...] | None:
        """Return all that the class declares, prototypes too.

        LayoutError unless it is None or a tuple of different layouts.
        """
        argument = f"supported_kv_cache_layouts of {self.name}"
        with asking(argument):
            declared = self.asked.supported_kv_cache_layouts()
            if declared is None:
                return None
            if not isinstance(declared, (tuple, list)) or not declared:
                raise LayoutError(argument, declared, "must be None, or a tuple of layouts, most preferred first",
                                  "Return None where the kernels take any layout")
            layouts = tuple(_order(argument, layout) for layout in declared)
            if len(set(layouts)) != len(layouts):
                raise LayoutError(argument, declared, "names a layout twice")
            return layouts

    def get_supported_kernel_block_sizes(self, spec: KVCacheSpec | None = None) -> list[int | MultipleOf]:
        """Return what the class takes; any size, as vLLM's base class, if it doesn't say."""
        with asking(f"get_supported_kernel_block_sizes of {self.name}"):
            if not hasattr(self.asked, "get_supported_kernel_block_sizes"):
                return [MultipleOf(1)]
            return list(supported_kernel_block_sizes(self.asked, spec))

    def supports(self, method: str, value: object) -> bool:
        """Return what a ``supports_...`` method of the class says to a value."""
        with asking(f"{method} of {self.name}"):
            return bool(getattr(self.asked, method)(value))

    def customize_spec(self, spec: KVCacheSpec) -> KVCacheSpec:
        """Return the spec as the class repacks it: by our rule where vLLM defines the method, else by its own."""
        spec = as_spec(spec)
        argument = f"customize_spec of {self.name}"
        with asking(argument):
            method = getattr(self.asked, "customize_spec", None)
        if method is None:
            return spec
        definer = _definer(self.asked, "customize_spec")
        if self.parts or self.repacked_by is not None:
            return super().customize_spec(spec)
        if definer == BASE:
            return spec
        if _is_vllm(definer):
            raise LayoutError("backend", self.name, f"is repacked by {definer}, which no rule here reproduces",
                              "Use a release that is recorded, or give the class a customize_spec of its own")
        with asking(argument):
            customised = method(spec)
            if not dataclasses.is_dataclass(customised):
                raise LayoutError(argument, customised, "must return a spec", "Return it unchanged if the page stays")
            return as_spec(customised, argument)

    def interior(self, spec: KVCacheSpec, layout: KVCacheLayout | None = None) -> Interior | None:
        """Return the interior that the class declares for ``spec``, checked; else that of its vLLM base, or None."""
        argument, spec = f"interior of {self.name}", as_spec(spec)
        with asking(argument):
            if hasattr(self.asked, "interior"):
                declared = self.asked.interior(spec)
                if declared is None:
                    return None
                if not isinstance(declared, Interior):
                    raise LayoutError(argument, declared, "must be a kvlayout Interior or None")
                return declared.check(spec)
        return super().interior(spec, layout)


def user_backend(obj: object, vllm_version: str) -> UserBackend:
    """Return ``obj`` (a class or an object of one) as a backend, its declarations checked.

    LayoutError for whatever is wrong with it, also where it raises as it is looked at.
    """
    listed = load(vllm_version)  # refuses an unknown release
    with asking("backend"):
        return _user_backend(obj, vllm_version, {one.class_path: one for one in listed.values()})


def class_of(obj: object) -> type:
    """Return ``obj`` if it is a class, else its class."""
    return obj if isinstance(obj, type) else type(obj)


def name_of(obj: object) -> str:
    """Return the name of an object's class, whatever its attributes or its metaclass do: it needn't be a backend."""
    return type.__dict__["__name__"].__get__(class_of(obj))


def _user_backend(obj: object, vllm_version: str, listed: dict[str, Backend]) -> UserBackend:
    kind = class_of(obj)
    if not hasattr(obj, "supported_kv_cache_layouts"):
        raise LayoutError("backend", obj, "has no supported_kv_cache_layouts()",
                          "Give a class with that method (None: any layout), a Backend, or a backend's name")
    path = f"{kind.__module__}.{kind.__qualname__}"
    line = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    recorded = next((listed[base] for base in line if base in listed), None)
    facts = {} if recorded is None else {f.name: getattr(recorded, f.name) for f in dataclasses.fields(Backend)}
    own_name = getattr(obj, "get_name", None)
    name = kind.__name__ if recorded is None or path != recorded.class_path else recorded.name
    definer = _definer(obj, "customize_spec")
    with asking(f"get_name of {name}"):
        vllm_name = own_name() if own_name else name
    check_type(f"get_name() of {name}", vllm_name, str)
    facts |= {
        "name": name, "class_path": path, "vllm_version": vllm_version, "from_source": False,
        "parts": facts.get("parts", ()) if recorded is not None and path == recorded.class_path else (),
        "vllm_name": vllm_name,
        "repacked_by": definer if definer and _is_vllm(definer) and definer.rpartition(".")[2] in RULES else None,
        "bases": tuple(filter(_is_vllm, line[1:])), "layout_branches": (), "kernel_block_branches": (),
    }
    for kept in ("is_mla", "is_sparse", "is_ssm"):
        with asking(f"{kept} of {name}"):
            if hasattr(obj, kept):
                facts[kept] = bool(getattr(obj, kept)())
    backend = UserBackend(**facts, asked=obj)
    layouts = backend.declared_layouts()
    return replace(backend, layouts=layouts and tuple(layout.name for layout in layouts),
                   kernel_block_sizes=tuple(backend.get_supported_kernel_block_sizes()))


def _order(argument: str, layout: object) -> KVCacheLayout | PhysicalLayout:
    """The layout that a class names: vLLM's, or any other order of the axes; no alias and no lower case."""
    if isinstance(layout, str) and (layout in LAYOUT_ALIASES or sorted(layout) != sorted(AXES)):
        raise LayoutError(argument, layout, "is not a layout of vLLM, nor an order of the axes L, B, H, N, C",
                          f"Return {', '.join(KVCacheLayout.__members__)}, or for a prototype any other order of "
                          "these letters")
    found = as_layout(layout, argument)
    return KVCacheLayout.__members__.get(found.name, found)


@contextmanager
def asking(argument: str) -> Iterator[None]:
    """Turn whatever the user's class raises inside, also the end of the process, into a LayoutError that says so."""
    try:
        yield
    except (LayoutError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise LayoutError(argument, raised(error), "failed when it was asked",
                          "Mend the class, or make the method a classmethod") from error


def _definer(obj: object, method: str) -> str | None:
    """The dotted path of the class that defines a method."""
    owner = next((base for base in class_of(obj).__mro__ if method in vars(base)), None)
    return owner and f"{owner.__module__}.{owner.__qualname__}"


def _is_vllm(path: str | None) -> bool:
    return bool(path) and path.split(".")[0] == "vllm"
