"""One plan before vLLM: its functions in the order of the engine, each fed with its own answer before.

Sources: vLLM 0.29.0 to 0.33.0; each method names the functions that it calls.
"""

from __future__ import annotations

from collections.abc import Callable

from kvlayout.captured import is_captured
from kvlayout.errors import LayoutError
from kvlayout.facts.connectors import connector_layout
from kvlayout.plan import Plan
from kvlayout.spec import AttentionSpec
from kvlayout.upstream import declared, omni, placed
from kvlayout.upstream.convert import to_vllm
from kvlayout.upstream.facts import config_facts, paired_groups, paired_specs
from kvlayout.upstream.inputs import (
    DeclaredBackend,
    attention_groups,
    different_backends,
    requested_layout,
    vllm_config,
)
from kvlayout.upstream.release import Release
from kvlayout.upstream.verdict import Check, compare

NOT_CAPTURED = "the config was captured: nothing of this was chosen here"


class NotJudged(Exception):
    """A question that can't be put to this vLLM; its text is the reason."""


class Hearing:
    """The questions about one plan. :meth:`checks` puts them all; what one needs, the one before has left here."""

    def __init__(self, plan: Plan, release: Release):
        self.plan, self.release = plan, release
        self.captured = is_captured(plan.selection.model)
        self.failed: str | None = None
        self.specs: dict[str, object] = {}
        self.layout = self.config = self.groups = self.vllm_config = None
        self.kernel_block_sizes: list[int] = []

    def checks(self) -> list[Check]:
        """Return a check for every question, in the engine's order."""
        steps = (("specs", self._specs), ("backends", self._backends), ("resolution", self._resolution),
                 ("groups", self._groups), ("placement", self._placement),
                 ("kernel block sizes", self._kernel_block_sizes), ("strides", self._strides),
                 ("views", self._views), ("omni", self._omni))
        return [self._put(name, ask) for name, ask in steps]

    def _put(self, name: str, ask: Callable[[], Check]) -> Check:
        """Put one question; a refusal of vLLM's is its answer, and ends what builds on it."""
        if self.failed is not None:
            return Check(name, None, reason=f"it builds on {self.failed}, which failed")
        try:
            return ask()
        except (NotJudged, LayoutError) as reason:
            check = Check(name, None, reason=str(reason))
        except Exception as error:  # vLLM refuses by assertions, ValueError, KeyError: whichever, it is its answer
            check = Check(name, False, 1, "a plan", f"{type(error).__name__}: {error}", f"{name} as a whole")
        if name in ("specs", "resolution", "groups", "placement", "kernel block sizes"):
            self.failed = name
        return check

    def _specs(self) -> Check:
        """Sizes of every layer's page: the spec classes of ``vllm/v1/kv_cache_interface.py``."""
        self.specs = to_vllm(dict(self.plan.specs))
        return compare("specs", *paired_specs(self.plan.specs, self.specs))

    def _backends(self) -> Check:
        """What vLLM's own backend classes declare, and how they repack a page; see :mod:`declared`."""
        if not self.plan.backends:
            raise NotJudged("no backend is known for this config")
        return declared.check(self.plan, self.release)

    def _resolution(self) -> Check:
        """``get_supported_kv_cache_layouts``, ``get_kv_connector_cache_layout``, ``resolve_kv_cache_layout``."""
        if self.captured:
            self._take_layout()
            return Check("resolution", None, reason=NOT_CAPTURED)
        selection, ask = self.plan.selection, self.release.backends
        self.vllm_config = vllm_config(self.plan, layout=selection.layout)
        ours, theirs = {}, {}
        prefer = next((step for step in self.plan.resolution.steps if step.rule == "backends-prefer"), None)
        names = []
        if prefer is not None:
            ours["candidates"] = list(prefer.after)
            backends = [DeclaredBackend(one) for one in different_backends(self.plan).values()]
            names = theirs["candidates"] = [one.name for one in ask.get_supported_kv_cache_layouts(backends)]
        reason = "" if prefer else "the backends share no layout, but the forced one is taken before they are asked"
        try:
            self._connector_wish(ours, theirs)
            workers = [names] * (selection.tp_size * selection.pp_size)
            with requested_layout(selection.requested):
                self.layout = ask.resolve_kv_cache_layout(self.vllm_config, workers, list(self.specs.values()))
        except ImportError as error:
            self._take_layout()
            return Check("resolution", None, reason=f"{selection.connector} can't be imported here ({error}); what "
                         "follows takes the plan's layout as given")
        ours["layout"], theirs["layout"] = self.plan.layout.name, self.layout.name
        ours["recorded"] = selection.layout or self.plan.layout.name
        theirs["recorded"] = self.vllm_config.cache_config.kv_cache_layout
        return compare("resolution", ours, theirs, reason)

    def _connector_wish(self, ours: dict, theirs: dict) -> None:
        connector = self.plan.selection.connector
        if connector is None:
            return
        uses_mla = self.vllm_config.model_config.use_mla
        ours["connector"] = connector_layout(connector, uses_mla=uses_mla,
                                             vllm_version=self.plan.selection.vllm_version)
        theirs["connector"] = self.release.backends.get_kv_connector_cache_layout(self.vllm_config)

    def _take_layout(self) -> None:
        """Go on with the plan's layout as vLLM's input, where vLLM has nothing to resolve."""
        self.vllm_config = vllm_config(self.plan, layout=self.plan.layout.name)
        self.layout = to_vllm(self.plan.layout)

    def _groups(self) -> Check:
        """``get_kv_cache_groups``, ``get_pp_indices``, ``_project_kv_cache_groups_to_worker``."""
        if self.captured:
            self.groups = [to_vllm(list(self.plan.groups))]
            return Check("groups", None, reason=NOT_CAPTURED)
        planning = self.release.planning
        whole = planning.get_kv_cache_groups(self.vllm_config, dict(self.specs))
        stages = self._stages()
        self.groups = [planning._project_kv_cache_groups_to_worker(whole, {name: self.specs[name] for name in stage})
                       for stage in stages]
        ours, theirs = paired_groups(self.plan.groups, self.groups[self._rank])
        if len(stages) > 1:
            ours["stages"] = self.plan.model.stage_layers(self.plan.selection.pp_size)
            theirs["stages"] = stages
        return compare("groups", ours, theirs)

    @property
    def _rank(self) -> int:
        return self.plan.selection.pp_rank

    def _stages(self) -> list[list[str]]:
        """Return each pipeline stage's layers, by vLLM's own bounds."""
        count, model = self.plan.selection.pp_size, self.plan.model
        if count == 1:
            return [list(self.specs)]
        from vllm.distributed.utils import get_pp_indices

        bounds = [get_pp_indices(model.architecture.num_layers, rank, count) for rank in range(count)]
        return [[layer.name for layer in model.architecture.layers if first <= layer.index < end]
                for first, end in bounds]

    def _placement(self) -> Check:
        """``get_kv_cache_config_from_groups`` on every stage, planned again where another has fewer blocks."""
        selection, planning = self.plan.selection, self.release.planning
        if self.captured:
            self.config = to_vllm(self.plan.config)
            if selection.vllm_version != self.release.version:
                return Check("placement", None, reason="the config was captured, and vLLM "
                             f"{self.release.version} may place such groups otherwise")
            self.vllm_config.cache_config.num_gpu_blocks_override = self.plan.config.num_blocks
        memory = selection.available_memory or 0
        configs = [planning.get_kv_cache_config_from_groups(self.vllm_config, groups, memory)
                   for groups in self.groups]
        if self.captured:
            return compare("placement", config_facts(self.plan.config), config_facts(configs[0]))
        self.config = configs[self._rank]
        fewest = min(config.num_blocks for config in configs)
        if self.config.num_blocks > fewest:
            per_block = self.config.kv_cache_tensors[0].size // self.config.num_blocks
            self.config = planning.get_kv_cache_config_from_groups(
                self.vllm_config, self.groups[self._rank], fewest * per_block)
        return compare("placement", config_facts(self.plan.config), config_facts(self.config))

    def _kernel_block_sizes(self) -> Check:
        """``prepare_kernel_block_sizes`` with our backends' declared sizes; a forced size is vLLM's input."""
        ours, name = list(self.plan.kernel_block_sizes), "kernel block sizes"
        if self.captured:
            self.kernel_block_sizes = ours
            return Check(name, None, reason=NOT_CAPTURED)
        served = attention_groups(self.plan, self.config.kv_cache_groups)
        theirs = self.release.worker.prepare_kernel_block_sizes(self.config, served)
        chosen = self.plan.selection.kernel_block_size
        if chosen is None:
            self.kernel_block_sizes = theirs
            return compare(name, {"groups": ours}, {"groups": theirs})
        forced = [any(isinstance(spec, AttentionSpec) for spec in group.layer_specs.values())
                  for group in self.plan.groups]
        self.kernel_block_sizes = [chosen if is_forced else size for is_forced, size in zip(forced, theirs)]
        left = {f"groups[{i}]": (ours[i], theirs[i]) for i in range(len(theirs)) if not forced[i]}
        reason = f"the selection forces {chosen} tokens for attention"
        if not left:
            return Check(name, None, reason=reason)
        return compare(name, {place: pair[0] for place, pair in left.items()},
                       {place: pair[1] for place, pair in left.items()}, reason)

    def _strides(self) -> Check:
        """``compute_layer_kv_cache_shape_bytes`` and ``compute_layout_strides``, with and without pinned strides."""
        return placed.strides(self.plan, self.release, self.config, self.layout, self.kernel_block_sizes)

    def _views(self) -> Check:
        """``create_kv_cache_views`` over a buffer on the meta device, which takes no memory."""
        return placed.views(self.plan, self.release, self.config, self.layout, self.kernel_block_sizes)

    def _omni(self) -> Check:
        """vLLM-Omni's functions; see :mod:`omni`."""
        return omni.check(self.plan)
