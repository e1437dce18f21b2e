"""A backend that is still being designed, tried on a model: its verdict, who loses, and the page it is handed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvlayout.bench.backend_check import check_backend
from kvlayout.bench.together import check_kernel_blocks
from kvlayout.captured import is_captured
from kvlayout.errors import LayoutError, check_type, shown
from kvlayout.facts.backends import Backend, as_backend, own_backends
from kvlayout.facts.models import get_preset, model_from_config
from kvlayout.facts.user_backend import UserBackend
from kvlayout.finding import Finding
from kvlayout.geometry import LayerView, layer_views, view_dtype
from kvlayout.interior import Interior
from kvlayout.kernel_blocks import takes_kernel_block
from kvlayout.layout import KVCacheLayout
from kvlayout.plan import (
    Plan,
    choose_backends,
    make_plan,
    rank_specs,
    reported_layer_specs,
    reported_specs,
    resolve_selection,
)
from kvlayout.region import Region
from kvlayout.selection import Selection
from kvlayout.spec import KVCacheSpec
from kvlayout.steps import ResolutionError, Step

# Rules of the resolver that take a layout out of the race; the later ones choose among those that are left.
_NARROWING = ("backends-support", "workers-agree", "mixed-specs", "dcp")


@dataclass(frozen=True)
class Standing:
    """How one backend fares in a verdict.

    Attributes:
        backend: its name
        declared: the layouts that it supports, most preferred first; None for any
        choice: which choice of its own it gets: 1 is the first, 0 where it doesn't mind, None for none at all
        lost: {a layout that it supports: why it is no candidate}
    """

    backend: str
    declared: tuple[str, ...] | None
    choice: int | None
    lost: dict[str, str] = field(hash=False)

    @property
    def loses(self) -> bool:
        """Whether it gets another layout than its first choice, or none."""
        return self.choice is None or self.choice > 1


@dataclass(frozen=True)
class Verdict:
    """What the resolver says to some backends.

    Attributes:
        layout: the layout's name; None where there is none
        candidates: the names that all of them support, most preferred first, before the model's rules
        why: the deciding step's sentence, or the reason that there is none
        steps: all steps
        standings: one for each backend
    """

    layout: str | None
    candidates: tuple[str, ...]
    why: str
    steps: tuple[Step, ...] = field(repr=False)
    standings: tuple[Standing, ...]

    @property
    def losers(self) -> list[str]:
        """Names of the backends that don't get their first choice."""
        return [one.backend for one in self.standings if one.loses]


@dataclass(frozen=True)
class PackedPage:
    """One page of the backend's layers, as it would lie in memory; sizes, strides and shapes in bytes unless said.

    Attributes:
        layers: names of the layers that have such pages, in one tensor
        reported, packed: the spec as the layer reports it, and as the backend repacks it and grouping leaves it
        kernel_block_size: tokens; the shape counts such blocks
        shape, strides: of [B, H, N, C]
        page_size_bytes: with padding, of a kernel block
        padding_bytes: of them without content
        view: shape and strides in elements of the first layer's view; None where there is none
        view_refused: why there is none
        interior: the named fields inside
    """

    layers: tuple[str, ...]
    reported: KVCacheSpec
    packed: KVCacheSpec
    kernel_block_size: int
    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    page_size_bytes: int
    padding_bytes: int
    view: LayerView | None
    view_refused: str
    interior: Interior


@dataclass(frozen=True, eq=False)
class Trial:
    """What came of :func:`try_backend`.

    Attributes:
        backend: the class as a Backend; None where it can't be taken as one
        findings: what it lacks or gets wrong, and why no cache could be planned; errors first
        alone: the verdict on its own layers and no other backend; None without a backend
        together: the same with the model's other backends and those beside it
        plan: the cache in the selection's layout, or that of ``together``, or of ``alone``, or else in the first that
            the backend names, whether vLLM has it or not; None where none can be planned
        pages: the different pages of the backend's layers in that plan
        forced: whether that plan's layout was the selection's, or the backend's where none could be resolved
    """

    backend: Backend | None
    findings: tuple[Finding, ...]
    alone: Verdict | None = None
    together: Verdict | None = None
    plan: Plan | None = field(default=None, repr=False)
    pages: tuple[PackedPage, ...] = field(default=(), repr=False)
    forced: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: a layout is resolved together with the others, and a cache can be planned."""
        return not any(one.is_error for one in self.findings)


def try_backend(obj: object, selection: Selection | None = None, *, beside: Iterable[object] = ()) -> Trial:
    """Return what the resolver and the planning make of a backend, given as :func:`as_backend` takes it.

    ``selection``: the model and all other choices; its ``backend`` is left out of account. ``beside``: backends that
    the same worker runs as well (a draft model's, say), by name or class. What is wrong with ``obj`` becomes
    findings; LayoutError for a selection that no model follows from, and for what is wrong with ``beside``.
    """
    selection = Selection() if selection is None else selection
    check_type("selection", selection, Selection)
    if is_captured(selection.model):
        raise LayoutError("selection", "a captured config", "was planned with backends of its own",
                          "Choose a model to try the backend on")
    model = get_preset(selection.model) if isinstance(selection.model, str) else model_from_config(selection.model)
    others = [as_backend(one, selection.vllm_version) for one in own_backends(beside, "beside")]
    found = check_backend(obj, vllm_version=selection.vllm_version)
    if any(one.is_error for one in found):
        return Trial(None, tuple(found))
    backend = as_backend(obj, selection.vllm_version)
    selection = replace(selection, backend=backend.name)
    served = choose_backends(model, selection, [backend])
    mine = {layer: one for layer, one in served.items() if one.name == backend.name}
    if not mine:
        raise LayoutError("selection", model.name, "has no attention layer that a backend could serve",
                          "Choose a model with attention")
    try:
        handed = reported_layer_specs(model, served, selection)
        found = check_backend(obj, [handed[layer] for layer in mine], vllm_version=selection.vllm_version)
        specs = rank_specs(model, served, selection)
    except LayoutError as error:
        return Trial(backend, _with_error(found, "no-plan", error))
    own_specs = {layer: specs[layer] for layer in mine}
    _check_names([backend, *served.values(), *others])
    alone = _verdict({backend.name: next(iter(mine.values()))}, own_specs, selection)
    rest = [*served.values(), *(other.on(selection.machine) for other in others)]
    together = _verdict({one.name: one for one in [*mine.values(), *rest]}, specs, selection)
    for name, verdict in (("alone", alone), ("together", together)):
        if verdict.layout is None:
            found = _with_error(found, f"no-layout-{name}", verdict.why)
    resolved = together.layout or alone.layout
    plan, found = _plan(backend, selection, resolved, found)
    pages = () if plan is None else _pages(plan, backend.name)
    for page in pages:
        found = _check_kernel_block(backend, page, found)
    if plan is not None:
        strangers = [one for one in others if one.name != backend.name]
        found = (*found, *check_kernel_blocks(plan, backend.name, strangers))
    forced = plan is not None and (selection.layout is not None or resolved is None)
    return Trial(backend, tuple(found), alone, together, plan, pages, forced)


def _check_names(party: Iterable[Backend]) -> None:
    """LayoutError where two different backends have one name: each is known by it, here and to vLLM."""
    met: dict[str, object] = {}
    for one in party:
        asked = one.asked if isinstance(one, UserBackend) else one.class_path
        if met.setdefault(one.name, asked) is not asked and met[one.name] != asked:
            raise LayoutError("beside", one.name, "is the name of two different backends of one worker",
                              "Rename yours: give it a get_name() of its own")


def _with_error(found: Iterable[Finding], rule: str, error: LayoutError | str) -> tuple[Finding, ...]:
    if isinstance(error, str):
        made = Finding(rule, "error", error)
    else:
        made = Finding(rule, "error", f"{error.argument}={shown(error.value, 80)}: {error.rule}.",
                       {"argument": error.argument}, None, error.cure)
    if any(one.is_error and one.message == made.message for one in found):
        return tuple(found)  # told already
    return (*(one for one in found if one.is_error), made, *(one for one in found if not one.is_error))


def _verdict(party: Mapping[str, Backend], specs: Mapping[str, KVCacheSpec], selection: Selection) -> Verdict:
    try:
        resolution = resolve_selection(party, specs, replace(selection, layout=None))
        steps, layout, why = resolution.steps, resolution.layout.name, resolution.why
    except ResolutionError as error:
        steps, layout, why = error.steps, None, str(LayoutError(error.argument, error.value, error.rule))
    dropped: dict[str, str] = {}
    for step in steps:
        if step.rule in _NARROWING:
            dropped = {**step.dropped, **dropped}
    candidates = next((step.after for step in reversed(steps) if step.rule.startswith("backends-")), ())
    standings = tuple(_standing(one, layout, dropped) for one in party.values())
    return Verdict(layout, candidates, why, steps, standings)


def _standing(backend: Backend, layout: str | None, dropped: Mapping[str, str]) -> Standing:
    layouts = backend.declared_layouts() if isinstance(backend, UserBackend) else backend.supported_kv_cache_layouts()
    if layouts is None:
        return Standing(backend.name, None, None if layout is None else 0, {})
    names = tuple(one.name for one in layouts)
    choice = names.index(layout) + 1 if layout in names else None
    lost = {name: dropped.get(name, "is no layout of vLLM's") for name in names
            if name in dropped or name not in KVCacheLayout.__members__}
    return Standing(backend.name, names, choice, lost)


def _plan(backend: Backend, selection: Selection, layout: str | None, found) -> tuple[Plan | None, tuple]:
    """The plan in a layout that was resolved, or is forced; and the findings with why there is none."""
    forced = selection.layout or layout
    if forced is None and backend.layouts:
        forced = backend.layouts[0]
    try:
        return make_plan(replace(selection, layout=forced), backends=[backend]), tuple(found)
    except LayoutError as error:
        return None, _with_error(found, "no-plan", error)


def _check_kernel_block(backend: Backend, page: PackedPage, found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Where a layout can't be split, vLLM hands out whole blocks without asking whether the kernels take them."""
    try:
        sizes, given = backend.get_supported_kernel_block_sizes(page.packed), page.kernel_block_size
    except LayoutError as error:  # it isn't asked for the plan of a layout that is never split
        return _with_error(found, "wrong-answer", error)
    if takes_kernel_block(sizes, given):
        return found
    return _with_error(found, "kernel-block", f"{backend.name} is handed blocks of {given} tokens, but takes "
                       f"{', '.join(map(str, sizes))}.")


def _pages(plan: Plan, name: str) -> tuple[PackedPage, ...]:
    reported = reported_specs(plan)
    return tuple(_page(plan, region, reported[region.tensor.layers[0]]) for region in plan.address_map.regions
                 if plan.backends[region.tensor.layers[0]].name == name)


def _page(plan: Plan, region: Region, reported: KVCacheSpec) -> PackedPage:
    geometry, layers = region.geometry, region.tensor.layers
    view, refused = None, ""
    try:
        view = layer_views(geometry, layers[:1], view_dtype(region.spec, geometry), plan.config.size_bytes)[0]
    except LayoutError as error:
        refused = str(error)
    content = geometry.shape[2] * geometry.shape[3] * geometry.shape[4]
    return PackedPage(layers, reported, region.spec, plan.kernel_block_sizes[region.group], geometry.shape[1:],
                      geometry.strides[1:], region.page_size_bytes, region.page_size_bytes - content, view, refused,
                      region.interior)
