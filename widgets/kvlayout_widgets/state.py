"""What the explorer shows: the user's choices, the last plan that they made, one coordinate of it, one real cache.

No widget is in here: a test or a script changes the state and reads the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakSet

import traitlets

from kvlayout.captured import is_captured, settled
from kvlayout.errors import LayoutError, raised
from kvlayout.facts.backends import as_backend
from kvlayout.landing import Landing
from kvlayout.memory.cache import KVCache, allocate_kv_cache
from kvlayout.plan import Plan, make_plan
from kvlayout.resolve import ResolutionError, Step
from kvlayout.selection import Selection
from kvlayout_widgets.catalogue import refusals
from kvlayout_widgets.figures.common import Coordinate

# ipywidgets keeps every widget alive, so a cell that is run again leaves the old explorer's cache allocated.
_states: WeakSet[State] = WeakSet()


class State(traitlets.HasTraits):
    """The explorer's state; every part of it can be observed.

    Traits:
        plan: of the last choices that could be planned; None until there were any
        problem: why the present choices can't be planned; None if ``plan`` is theirs
        coordinate: the selected byte of ``plan``; None if it has no bytes
        cache: the allocated cache, or None
        cache_plan: the plan that ``cache`` was allocated from
        landing: where tokens landed in the plan's cache, to be lit; None once another plan is shown
    ``choices`` are what the controls say, as arguments of a Selection, also where no plan follows from them;
    ``refusals`` {layout: why} are those that vLLM's resolver excludes for them. ``backends`` are the user's own that
    can be planned with, ``broken`` [(class, why)] the others; where the selection names one, none is left out.
    """

    plan = traitlets.Instance(Plan, allow_none=True)
    problem = traitlets.Instance(LayoutError, allow_none=True)
    coordinate = traitlets.Instance(Coordinate, allow_none=True)
    cache = traitlets.Instance(KVCache, allow_none=True)
    cache_plan = traitlets.Instance(Plan, allow_none=True)
    landing = traitlets.Instance(Landing, allow_none=True)

    def __init__(self, selection: Selection, backends: tuple = ()):
        super().__init__()
        self.choices: dict[str, object] = selection.to_dict()
        self.broken = [] if selection.backend is not None else _broken(backends, selection.vllm_version)
        self.backends = tuple(one for one in backends if not any(one is odd for odd, _ in self.broken))
        self.refusals: dict[str, str] = {}
        _states.add(self)
        self.try_change()

    def try_change(self, **choices: object) -> bool:
        """Take ``choices`` (a Selection's arguments) and plan; whether that worked. Else the last plan stays."""
        unknown = sorted(set(choices) - set(self.choices))
        if unknown:
            self.problem = LayoutError("selection", unknown, "are not fields of a Selection",
                                       f"Use {', '.join(self.choices)}")
            return False
        self.choices.update(choices)
        if is_captured(self.choices["model"]):
            self.choices = settled(self.choices)
        try:
            selection = Selection.from_dict(self.choices)
            self.choices = selection.to_dict()
            if self.plan is not None and selection == self.plan.selection:
                self.problem = None
                return True
            if selection.layout is not None:
                self.refusals = refusals(self._steps_without(selection))
            plan = self._make_plan(selection)
        except LayoutError as error:
            if isinstance(error, ResolutionError):
                self.refusals = refusals(error.steps)
            self.problem = error
            return False
        except Exception as error:  # whatever it is, the user must see that the picture isn't these choices'
            self.problem = LayoutError("selection", choices, f"can't be planned: {raised(error)}")
            self.problem.__cause__ = error
            return False
        if selection.layout is None:
            self.refusals = refusals(plan.resolution.steps)
        coordinate = _nearest(plan, self.coordinate, self.plan)
        with self.hold_trait_notifications():
            self.plan, self.coordinate, self.problem, self.landing = plan, coordinate, None, None
        return True

    def refuse(self, problem: LayoutError) -> None:
        """Take note that a control says nothing that could be planned; the last plan stays."""
        self.problem = problem

    def _make_plan(self, selection: Selection) -> Plan:
        return make_plan(selection, backends=self.backends)

    def _steps_without(self, selection: Selection) -> tuple[Step, ...]:
        """The resolver's steps if no layout were forced: a forced one is taken before any rule is asked."""
        try:
            return self._make_plan(replace(selection, layout=None)).resolution.steps
        except ResolutionError as error:
            return error.steps
        except LayoutError:
            return ()

    def select(self, layer: str | int, block: int, head: int = 0, state: int = 0, byte: int = 0) -> None:
        """Select a coordinate; LayoutError naming the part that is out of range."""
        address_map = self.plan.address_map
        address_map.offset(layer, block, head, state, byte)
        name = address_map.layers[address_map.layer_index(layer)]
        self.coordinate = Coordinate(name, int(block), int(head), int(state), int(byte))

    def select_address(self, offset: int, group: int | None = None) -> bool:
        """Select the owner of a byte offset, that of ``group`` if there are several; False if nobody owns it.

        Raises LayoutError for an offset outside the allocation.
        """
        address_map = self.plan.address_map
        address_map.padding_of(offset)
        owners = address_map.owners(offset)
        if not owners:
            return False
        owner = next((one for one in owners if one.group == group), owners[0])
        self.select(owner.layer, owner.block, owner.head, owner.state, owner.byte)
        return True

    def light(self, landing: Landing | None) -> None:
        """Light where tokens landed; LayoutError where the landing is of other layers, or of blocks beyond these."""
        if landing is not None:
            if not isinstance(landing, Landing):
                raise LayoutError("landing", landing, "must be a Landing or None", "Give what land returned")
            address_map = self.plan.address_map
            if landing.layers != address_map.layers:
                raise LayoutError("landing", landing.layers[:3], "is of other layers than the plan that is shown",
                                  "Open the engine's dump first, as Explorer(engine.ranks[0])")
            if len(landing.layer):
                address_map.offset(landing.layer, landing.block, landing.head)
        self.landing = landing

    def allocate(self) -> None:
        """Allocate the plan's cache on the chosen device; one allocated before is freed first.

        Raises CacheMemoryError where it doesn't fit; LayoutError where the choices can't be planned.
        """
        if self.problem is not None:
            raise self.problem
        self.free()
        plan = self.plan
        cache = allocate_kv_cache(plan.config, plan.selection.device, plan.layout, plan.kernel_block_sizes,
                                  interiors=plan.interiors)
        self.cache_plan, self.cache = plan, cache

    def free(self) -> None:
        """Free the allocated cache, if there is one."""
        cache, self.cache, self.cache_plan = self.cache, None, None
        if cache is not None:
            cache.free()

    def other_caches(self) -> list[KVCache]:
        """Return the caches that other explorers of this kernel hold, such as one of a cell that was run again."""
        return [one.cache for one in _states if one is not self and one.cache is not None]

    def free_others(self) -> None:
        """Free the caches of the other explorers."""
        for one in list(_states):
            if one is not self:
                one.free()

    @property
    def cache_is_stale(self) -> bool:
        """Whether the allocated cache differs from the plan that is shown."""
        if self.cache_plan is None:
            return False
        old, new = self.cache_plan, self.plan
        return ((old.config, old.layout, old.kernel_block_sizes, old.interiors)
                != (new.config, new.layout, new.kernel_block_sizes, new.interiors))


def _broken(backends: Iterable[object], vllm_version: str) -> list[tuple[object, LayoutError]]:
    """Return the classes that can't be taken as a backend, each with the reason."""
    found = []
    for one in backends:
        try:
            as_backend(one, vllm_version)
        except LayoutError as error:
            found.append((one, error))
    return found


def _nearest(plan: Plan, old: Coordinate | None, old_plan: Plan | None) -> Coordinate | None:
    """Return the coordinate of ``plan`` nearest to ``old`` of ``old_plan``; None if the plan has no bytes."""
    layers = plan.address_map.layers
    if not layers:
        return None
    # Without an old one: neither the first nor a round number, so that each stride is seen in the address.
    layer = layers[len(layers) * 3 // 7] if old is None else old.layer
    if layer not in layers:
        layer = layers[min(old_plan.address_map.layer_index(layer), len(layers) - 1)]
    extents = plan.address_map.shape(layer)
    if 0 in extents:
        return None
    wished = (37, 0, 0, 0) if old is None else (old.block, old.head, old.state, old.byte)
    return Coordinate(layer, *(min(value, extent - 1) for value, extent in zip(wished, extents)))
