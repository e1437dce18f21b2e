"""From a Selection to a Plan: specs, resolution, groups, config and address map, in vLLM's own order.

Source of the order: vLLM 0.33.0, ``vllm/v1/engine/core.py`` (_initialize_kv_caches) and
``vllm/v1/core/kv_cache_planning.py`` (get_kv_cache_configs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvlayout.address import AddressMap
from kvlayout.captured import is_captured, read_capture
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.facts.backends import Backend, as_backend, get_backend, own_backends, plugin_backends
from kvlayout.facts.connectors import connector_layout
from kvlayout.facts.models import Model, get_preset, model_from_config
from kvlayout.grouping import get_kv_cache_groups, project_kv_cache_groups
from kvlayout.interior import Interior
from kvlayout.kernel_blocks import AttentionGroup, prepare_kernel_block_sizes
from kvlayout.layout import LAYOUT_ALIASES, KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.placement import get_kv_cache_bytes_per_block, get_kv_cache_config_from_groups
from kvlayout.resolve import Resolution, ResolutionError, common_layouts, resolve
from kvlayout.selection import Selection
from kvlayout.spec import AttentionSpec, KVCacheSpec

DEFAULT_NUM_BLOCKS = 64


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that follows from a selection.

    Attributes:
        selection, model: what was chosen
        backends: {layer: the backend that reads and writes it}
        specs: {layer: spec} of the whole model, repacked by the backends, before grouping
        resolution: the layout and the steps to it
        groups: this rank's groups; layer pages as grouping left them
        config: this rank's tensors; ``config.kv_cache_layout`` is the layout's name, None where that is a guess
        kernel_block_sizes: tokens, one a group
        interiors: {layer: what its pages hold}, where the backend doesn't keep the default
        address_map: of ``config``, with the backends' kernel blocks and interiors
    """

    selection: Selection
    model: Model = field(repr=False)
    backends: dict[str, Backend] = field(repr=False)
    specs: dict[str, KVCacheSpec] = field(repr=False)
    resolution: Resolution
    groups: tuple[KVCacheGroupSpec, ...] = field(repr=False)
    config: KVCacheConfig = field(repr=False)
    kernel_block_sizes: tuple[int, ...]
    interiors: dict[str, Interior] = field(repr=False)
    address_map: AddressMap = field(repr=False)

    @property
    def layout(self) -> KVCacheLayout | PhysicalLayout:
        """The resolved layout; a prototype only where it is forced."""
        return self.resolution.layout

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block id stands for on this rank."""
        if self.config.num_blocks:
            return self.config.size_bytes // self.config.num_blocks
        if not any(group.layer_names for group in self.groups):
            return 0
        return get_kv_cache_bytes_per_block(self.groups, self.layout, vllm_version=self.selection.vllm_version)


def make_plan(selection: Selection, *, backends: Iterable[object] = ()) -> Plan:
    """Return the plan of ``selection``.

    ``backends``: classes of the user's own that ``selection.backend`` may name, as :func:`as_backend` takes them.
    Raises LayoutError for a choice that vLLM would refuse; a ResolutionError carries the steps until it failed.
    """
    if not isinstance(selection, Selection):
        raise LayoutError("selection", selection, "must be a Selection", "Write Selection(model=...)")
    backends = own_backends(backends)
    if is_captured(selection.model):
        return _plan_of_capture(selection, backends)
    version = selection.vllm_version
    model = get_preset(selection.model) if isinstance(selection.model, str) else model_from_config(selection.model)
    backends = choose_backends(model, selection, backends)
    specs = rank_specs(model, backends, selection)
    resolution = resolve_selection(backends, specs, selection)
    groups = get_kv_cache_groups(
        specs, resolution.layout, vllm_version=version,
        disable_hybrid_kv_cache_manager=selection.disable_hybrid_kv_cache_manager)
    stages = [project_kv_cache_groups(groups, names) for names in model.stage_layers(selection.pp_size)]
    config = _config(stages, resolution.layout, selection)
    return _finish(selection, model, backends, specs, resolution, config,
                   _kernel_block_sizes(config, backends, selection))


def _plan_of_capture(selection: Selection, own: Iterable[object]) -> Plan:
    """The plan of a config that was captured: its groups and tensors are taken as they are."""
    captured = read_capture(selection)
    offered = {one.name: one for one in (as_backend(one, selection.vllm_version) for one in own)}
    of_name = {name: (offered.get(name) or get_backend(name, selection.vllm_version)).on(selection.machine)
               for name in dict.fromkeys(captured.backend_names.values())}
    backends = {layer: of_name[name] for layer, name in captured.backend_names.items()}
    specs = captured.config.layer_specs
    model = Model("captured", "captured config", "a capture", "specs", specs=specs)
    return _finish(selection, model, backends, specs, captured.resolution, captured.config,
                   captured.kernel_block_sizes)


def _finish(selection: Selection, model: Model, backends: dict[str, Backend], specs: dict[str, KVCacheSpec],
            resolution: Resolution, config: KVCacheConfig, kernel_block_sizes: list[int]) -> Plan:
    """Add what the backends keep inside the pages, and the address map."""
    interiors: dict[str, Interior] = {}
    for group, size in zip(config.kv_cache_groups, kernel_block_sizes):
        for name, spec in group.layer_specs.items():
            if name not in backends:
                continue
            kernel_spec = spec if size == spec.block_size else spec.copy_with_new_block_size(size)
            interior = backends[name].interior(kernel_spec, resolution.layout)
            if interior is not None:
                interiors[name] = interior
    sizes = tuple(kernel_block_sizes)
    return Plan(selection, model, backends, specs, resolution, config.kv_cache_groups, config, sizes, interiors,
                AddressMap(config, resolution.layout, sizes, interiors))


def choose_backends(model: Model, selection: Selection, own: Iterable[object] = ()) -> dict[str, Backend]:
    """Return each layer's backend: the chosen one for attention, the model's own kinds' for the rest.

    ``own``: the user's classes. One that is chosen, or a plugin's, serves every attention layer unasked, whatever the
    layer keeps.
    """
    kinds, version = model.layer_kinds, selection.vllm_version
    offered = {backend.name: backend for backend in (as_backend(one, version) for one in own)}
    mine = offered.get(selection.backend) or plugin_backends(version).get(selection.backend)
    of_kind = {}
    for kind in dict.fromkeys(kinds.values()):
        if mine is not None and kind not in model.STATE_KINDS and kind != "indexer":
            of_kind[kind] = mine
        else:
            chosen = None if mine is not None else selection.backend
            of_kind[kind] = get_backend(model.backend_name(kind, chosen, vllm_version=version), version)
    machine = replace(selection.machine, kv_connector=selection.connector is not None)
    of_kind = {kind: backend.on(machine) for kind, backend in of_kind.items()}
    return {name: of_kind[kind] for name, kind in kinds.items()}


def preferred_block_size(backend: Backend, default: int = 16) -> int:
    """Return ``default`` tokens if the backend takes blocks of that size, else its smallest.

    Source: vLLM 0.33.0 ``AttentionBackend.get_preferred_block_size``.
    """
    smallest = [getattr(size, "base", size) for size in backend.get_supported_kernel_block_sizes()]
    if not smallest or any(default % size == 0 for size in smallest):
        return default
    return min(smallest)


def reported_specs(plan: Plan) -> dict[str, KVCacheSpec]:
    """Return {layer: spec} of the whole model as its layers report them, before the backends repack the pages."""
    return reported_layer_specs(plan.model, plan.backends, plan.selection)


def rank_specs(model: Model, backends: dict[str, Backend], selection: Selection) -> dict[str, KVCacheSpec]:
    """Return {layer: spec} of the whole model with the pages as ``backends`` {layer: its own} repack them."""
    return {name: backends[name].customize_spec(spec) if isinstance(spec, AttentionSpec) else spec
            for name, spec in reported_layer_specs(model, backends, selection).items()}


def reported_layer_specs(model: Model, backends: dict[str, Backend], selection: Selection) -> dict[str, KVCacheSpec]:
    """Return {layer: spec} of the whole model as :func:`reported_specs`, before there is a plan."""
    kinds = model.layer_kinds
    by_kind = {kinds[name]: backend for name, backend in backends.items()}
    attention = [backend for kind, backend in by_kind.items() if kind not in model.STATE_KINDS]
    block_size = selection.block_size
    if block_size is None:
        block_size = max((preferred_block_size(backend) for backend in attention), default=16)
    return model.aligned_kv_cache_specs(
        backend=attention[0] if attention else None, tp_size=selection.tp_size, pp_size=selection.pp_size,
        block_size=block_size, kv_cache_dtype=selection.kv_cache_dtype, max_model_len=selection.max_model_len,
        vllm_version=selection.vllm_version)


def resolve_selection(
    backends: Mapping[str, Backend], specs: Mapping[str, KVCacheSpec], selection: Selection
) -> Resolution:
    """Return the layout that vLLM would take for these backends (of any keys) and the selection's wishes.

    ResolutionError, with the steps until then, where it would refuse.
    """
    pinned = selection.layout
    if pinned is not None and pinned not in LAYOUT_ALIASES:
        pinned = as_layout(pinned)  # also a prototype, which no cache_config of vLLM's could name
    wish = None
    if selection.connector is not None:
        uses_mla = any(getattr(spec, "head_size_v", None) == 0 for spec in specs.values())
        wish = connector_layout(selection.connector, uses_mla=uses_mla, vllm_version=selection.vllm_version)
    try:
        common = common_layouts({one.name: one.supported_kv_cache_layouts() for one in backends.values()})
    except ResolutionError:
        if pinned is None:
            raise
        # A pin wins before any backend is asked.
        return resolve([], [], pinned=pinned)
    ranks = selection.tp_size * selection.pp_size
    try:
        resolved = resolve([[layout.name for layout in common.layouts]] * ranks, specs.values(), pinned=pinned,
                           requested=selection.requested, connector=wish, vllm_version=selection.vllm_version)
    except ResolutionError as error:
        steps = (*common.steps, *error.steps)
        raise ResolutionError(error.argument, error.value, error.rule, error.cure, steps) from None
    return replace(resolved, steps=(*common.steps, *resolved.steps))


def _config(stages: list[list[KVCacheGroupSpec]], layout: KVCacheLayout, selection: Selection) -> KVCacheConfig:
    """The rank's config, with the block count that the smallest stage allows."""
    override = selection.num_blocks
    memory = selection.available_memory
    if override is None and memory is None:
        override = DEFAULT_NUM_BLOCKS
    configs = []
    for groups in stages:
        if not any(group.layer_names for group in groups):
            raise LayoutError("pp_size", selection.pp_size, "leaves a stage without any cached layer",
                              "Use fewer pipeline stages")
        configs.append(get_kv_cache_config_from_groups(
            groups, memory or 0, layout, num_gpu_blocks_override=override, vllm_version=selection.vllm_version))
    config = configs[selection.pp_rank]
    fewest = min(one.num_blocks for one in configs)
    if config.num_blocks == fewest:
        return config
    return get_kv_cache_config_from_groups(stages[selection.pp_rank], memory or 0, layout,
                                           num_gpu_blocks_override=fewest, vllm_version=selection.vllm_version)


def _kernel_block_sizes(config: KVCacheConfig, backends: dict[str, Backend], selection: Selection) -> list[int]:
    served = []
    for group in config.kv_cache_groups:
        pairs = {(backends[name].name, spec): AttentionGroup(backends[name], spec)
                 for name, spec in group.layer_specs.items()}
        served.append(list(pairs.values()))
    chosen = prepare_kernel_block_sizes(config, served, vllm_version=selection.vllm_version)
    if selection.kernel_block_size is None:
        return chosen
    return [selection.kernel_block_size if _is_attention(group) else size
            for group, size in zip(config.kv_cache_groups, chosen)]


def _is_attention(group: KVCacheGroupSpec) -> bool:
    return any(isinstance(spec, AttentionSpec) for spec in group.layer_specs.values())
