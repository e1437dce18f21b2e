"""Two sides of a transfer, made from the plan that is shown: what each may choose, and the library's Side objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvlayout.address import AddressMap
from kvlayout.captured import is_captured
from kvlayout.clinic import Exchange, Fates, Side, exchange, mistaken
from kvlayout.clinic.relayout import relaid
from kvlayout.errors import LayoutError, check_int
from kvlayout.plan import Plan, make_plan
from kvlayout.spec import AttentionSpec

MOST_BLOCKS = 256  # of a request
MOST_RANKS = 256  # that send
MOST_CELLS = 1 << 17  # (layer, block, head slot, state) of the target
MOST_BYTES = 1 << 18  # of the target, where a layout scatters a state's bytes, so that each is a piece of its own


@dataclass(frozen=True)
class SideChoice:
    """One side; None means as in the cache that is shown.

    Attributes:
        tp_size, pp_size: its tensor-parallel size and pipeline stages
        ranks, stages: which of them take part; None for all
        layout: a layout's name
        block_size: tokens
        num_blocks: of its pool, in the manager's blocks
        blocks: the request's block ids, in token order
        block_ids: what they count, "manager" blocks or the "map"'s kernel blocks
    """

    tp_size: int | None = None
    pp_size: int | None = None
    ranks: tuple[int, ...] | None = None
    stages: tuple[int, ...] | None = None
    layout: str | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    blocks: tuple[int, ...] = ()
    block_ids: str = "manager"


@dataclass(frozen=True)
class Answer:
    """A transfer that was worked out.

    Attributes:
        sources, target: its sides; ``source_of`` (stage, rank) of each source
        found, meant: what is copied, and what would be without a mistake
        fates: what each byte of the target becomes
        blocks: the request's at the target, as its map counts them
        layers: that are worked out, of the target; ``more_layers`` move with them and aren't
        total_heads: KV heads of the whole model in these layers
        idle_blocks: of the request at the sources, as typed, that lie behind the target's last token
    """

    sources: list[Side]
    source_of: list[tuple[int, int]]
    target: Side
    found: Exchange
    meant: Exchange
    fates: Fates
    blocks: list[int]
    total_heads: int
    idle_blocks: int
    more_layers: int

    @property
    def layers(self) -> tuple[str, ...]:
        return self.target.layers


def moved_layers(plan: Plan, layer: str) -> list[str]:
    """Return the layers that are moved with ``layer``: of its group, those that have as many KV heads."""
    group = plan.config.kv_cache_groups[plan.address_map.region(layer).group]
    heads = _kv_heads(plan, layer)
    return [name for name in group.layer_names if _kv_heads(plan, name) == heads]


class Sides:
    """Sides of transfers from and to caches like ``plan``'s; maps that were planned are kept."""

    def __init__(self, plan: Plan, backends: Iterable[object] = ()):
        self.plan, self._backends, self._maps = plan, tuple(backends), {}
        self.is_captured = is_captured(plan.selection.model)

    def address_map(self, choice: SideChoice, stage: int) -> AddressMap:
        """Return the map of one stage of a side; LayoutError where no such cache can be planned."""
        layout = choice.layout or self.plan.layout.name
        key = choice.tp_size, choice.pp_size, choice.block_size, choice.num_blocks, layout, stage
        if key not in self._maps:
            self._maps[key] = self._planned(choice, layout, stage)
        return self._maps[key]

    def sides(self, choice: SideChoice, layer: str) -> list[tuple[int, int, Side]]:
        """Return (stage, rank, side) of each rank that takes part and has layers that move with ``layer``."""
        tp_size, pp_size = self._sizes(choice)
        ranks, stages = (_chosen(name, given, size) for name, given, size in
                         (("ranks", choice.ranks, tp_size), ("stages", choice.stages, pp_size)))
        if len(ranks) * len(stages) > MOST_RANKS:
            raise LayoutError("ranks", f"{len(ranks):,} x {len(stages):,}", f"are more than {MOST_RANKS} ranks",
                              "Choose fewer of them")
        total, wanted, found = self.total_heads(layer), moved_layers(self.plan, layer), []
        for stage in stages:
            address_map = self.address_map(choice, stage)
            here = [name for name in wanted if name in address_map.layers]
            # A layout or a stage may group layers in another way; a request's blocks are one group's.
            group = next((address_map.region(name).group for name in (layer, *here) if name in here), None)
            here = [name for name in here if address_map.region(name).group == group]
            if here:
                found += [(stage, rank, Side(address_map, rank, tp_size, total, here, choice.block_ids))
                          for rank in ranks]
        return found

    def total_heads(self, layer: str) -> int:
        """Return the whole model's KV heads in ``layer``; this rank's where the config was captured."""
        if self.is_captured or not isinstance(self.plan.specs[layer], AttentionSpec):
            return _kv_heads(self.plan, layer)
        if self.plan.selection.tp_size == 1:
            return _kv_heads(self.plan, layer)
        alone = replace(self.plan.selection, tp_size=1, available_memory=None, num_blocks=1,
                        layout=self.plan.layout.name)
        return _kv_heads(make_plan(alone, backends=self._backends), layer)

    def answer(self, source: SideChoice, target: SideChoice, layer: str, *, mistake: tuple[str, str] | None = None,
               replicas: str = "first") -> Answer:
        """Work out the transfer of the layers that move with ``layer``.

        ``mistake``: ("source" or "target", the layout that it is taken for). LayoutError for what can't be, and for
        more than is shown at once.
        """
        for name, choice in (("source blocks", source), ("target blocks", target)):
            if len(choice.blocks) > MOST_BLOCKS:
                raise LayoutError(name, f"{len(choice.blocks):,} blocks", f"are more than the {MOST_BLOCKS} that are "
                                  "worked out here", "Give fewer, or use kvlayout.clinic.exchange")
        receivers, senders = self.sides(target, layer), self.sides(source, layer)
        if not receivers:
            raise LayoutError("stage", target.stages, "has none of the layers that are moved", "Choose another stage")
        receiver = receivers[0][2]
        _check_size(receiver, target)
        used = [receiver.address_map, *(side.address_map for _, _, side in senders)]
        scatters = not all(name.endswith("C") for name in (*(one.layout.name for one in used), *(mistake or ())[1:]))
        kept, more = _worked_out(receiver, target, layer) if scatters else (receiver.layers, 0)
        receiver = replace(receiver, layers=kept)
        senders = [(stage, rank, replace(side, layers=here)) for stage, rank, side in senders
                   if (here := [name for name in side.layers if name in kept])]
        if not senders:
            raise LayoutError("source ranks", source.ranks, "have none of the layers that are moved")
        sides = [side for _, _, side in senders]
        request = dict(source_blocks=list(source.blocks), target_blocks=list(target.blocks), replicas=replicas)
        found = meant = exchange(sides, receiver, **request)
        if mistake is not None:
            found = mistaken(sides, receiver, assumed_layout=mistake[1], side=mistake[0], **request)
        blocks = next(iter(receiver.map_blocks("target_blocks", list(target.blocks)).values())).tolist()
        idle = len(source.blocks) - -(-_states(receiver, target) // _states(sides[0], source, 1))
        return Answer(sides, [(stage, rank) for stage, rank, _ in senders], receiver, found, meant,
                      Fates(found, meant, sides, receiver), blocks, self.total_heads(layer),
                      max(0, idle), more)

    def _sizes(self, choice: SideChoice) -> tuple[int, int]:
        own = self.plan.selection
        return (own.tp_size if choice.tp_size is None else check_int("tp_size", choice.tp_size, minimum=1),
                own.pp_size if choice.pp_size is None else check_int("pp_size", choice.pp_size, minimum=1))

    def _planned(self, choice: SideChoice, layout: str, stage: int) -> AddressMap:
        plan = self.plan
        if self.is_captured:
            for name in ("tp_size", "pp_size", "block_size", "num_blocks"):
                value = getattr(choice, name)
                if value is not None:
                    raise LayoutError(name, value, "can't be chosen: the config was captured as it is",
                                      "Leave it empty, or choose a model instead")
            return relaid(plan.address_map, layout, vllm_version=plan.selection.vllm_version)
        tp_size, pp_size = self._sizes(choice)
        blocks = plan.config.num_blocks if choice.num_blocks is None else choice.num_blocks
        chosen = replace(plan.selection, tp_size=tp_size, pp_size=pp_size, pp_rank=stage, layout=layout,
                         num_blocks=blocks, available_memory=None)
        if choice.block_size is not None:
            chosen = replace(chosen, block_size=choice.block_size)
        return make_plan(chosen, backends=self._backends).address_map


def _chosen(name: str, given: tuple[int, ...] | None, size: int) -> list[int]:
    if given is None:
        if size > MOST_RANKS:
            raise LayoutError(name, size, f"are more than {MOST_RANKS}", "Choose some of them")
        return list(range(size))
    for one in given:
        if one >= size:
            raise LayoutError(name, one, f"must be below {size}")
    return list(dict.fromkeys(given))


def _states(side: Side, choice: SideChoice, blocks: int | None = None) -> int:
    """Token states of so many blocks as typed; None for all of the request's."""
    region = side.address_map.region(side.layers[0])
    each = region.spec.num_states if choice.block_ids == "manager" else region.geometry.shape[3]
    return each * (len(choice.blocks) if blocks is None else blocks)


def _check_size(side: Side, choice: SideChoice) -> None:
    page = max(side.address_map.shape(name)[1] * side.address_map.shape(name)[2] for name in side.layers)
    region = side.address_map.region(side.layers[0])
    ratio = region.spec.num_states // max(1, region.geometry.shape[3]) if choice.block_ids == "manager" else 1
    each = len(side.layers) * page * max(1, ratio)
    cells = each * len(choice.blocks)
    if cells > MOST_CELLS:
        raise LayoutError("target blocks", f"{len(choice.blocks):,} blocks", f"are {cells:,} cells of (layer, block, "
                          f"head slot, state), more than the {MOST_CELLS:,} that are worked out here",
                          f"Give at most {max(1, MOST_CELLS // max(1, each)):,}, or use kvlayout.clinic.exchange")


def _worked_out(side: Side, choice: SideChoice, layer: str) -> tuple[tuple[str, ...], int]:
    """As many of a target's layers as can be moved byte by byte, ``layer`` first, and how many are left out."""
    _, heads, _, content = side.address_map.shape(side.layers[0])
    each = heads * content * _states(side, choice)
    if each > MOST_BYTES:
        raise LayoutError("target blocks", f"{len(choice.blocks):,} blocks", f"are {each:,} bytes of a layer, each "
                          f"moved alone as a layout scatters them; at most {MOST_BYTES:,} are worked out here",
                          f"Give at most {max(1, MOST_BYTES * len(choice.blocks) // each):,}, or use "
                          "kvlayout.clinic.exchange")
    first = side.layers.index(layer) if layer in side.layers else 0
    number = min(len(side.layers), MOST_BYTES // max(1, each))
    first = min(first, len(side.layers) - number)
    return side.layers[first:first + number], len(side.layers) - number


def _kv_heads(plan: Plan, layer: str) -> int:
    spec = plan.config.layer_specs[layer]
    return spec.num_kv_heads if isinstance(spec, AttentionSpec) else 1
