"""What vLLM is asked with: its own config objects, filled from a selection, and backends that declare our facts.

Everything here is a question's input. Specs, declared layouts and kernel block sizes are facts of ours; what follows
from them is vLLM's to say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from kvlayout.plan import DEFAULT_NUM_BLOCKS, Plan
from kvlayout.resolve import ENVIRONMENT_VARIABLE
from kvlayout.spec_io import as_spec
from kvlayout.upstream.convert import to_vllm


class DeclaredBackend:
    """A backend that answers vLLM's questions with what ours declares, as vLLM's own objects."""

    def __init__(self, backend: object):
        self._backend = backend

    def get_name(self) -> str:
        """The name that vLLM's messages show."""
        return self._backend.get_name()

    def supported_kv_cache_layouts(self) -> tuple | None:
        """The declared layouts as vLLM's members."""
        declared = self._backend.supported_kv_cache_layouts()
        return None if declared is None else tuple(to_vllm(layout) for layout in declared)

    def get_supported_kernel_block_sizes(self, kv_cache_spec: object | None = None) -> list:
        """The declared sizes; vLLM asks with its own spec, before 0.32 without."""
        spec = None if kv_cache_spec is None else as_spec(kv_cache_spec)
        return [size if isinstance(size, int) else to_vllm(size)
                for size in self._backend.get_supported_kernel_block_sizes(spec)]


def different_backends(plan: Plan) -> dict[str, object]:
    """Return {name: backend} of a plan in layer order, each once."""
    return {backend.name: backend for backend in plan.backends.values()}


def vllm_config(plan: Plan, *, layout: str | None) -> SimpleNamespace:
    """Return what vLLM's functions read of a VllmConfig; its cache_config is a real CacheConfig.

    ``layout``: the name on cache_config already, None where it is to be resolved.
    """
    from vllm.config import CacheConfig

    selection = plan.selection
    cache_config = CacheConfig()
    cache_config.kv_cache_layout = layout
    blocks = selection.num_blocks
    if blocks is None and selection.available_memory is None:
        blocks = DEFAULT_NUM_BLOCKS
    cache_config.num_gpu_blocks_override = blocks
    uses_mla = any(spec.head_size_v == 0 for spec in plan.specs.values() if hasattr(spec, "head_size_v"))
    return SimpleNamespace(
        cache_config=cache_config, model_config=SimpleNamespace(use_mla=uses_mla), speculative_config=None,
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=selection.disable_hybrid_kv_cache_manager),
        attention_config=SimpleNamespace(hisparse_config=None), kv_transfer_config=_transfer(selection.connector))


def _transfer(connector: str | None) -> object | None:
    if connector is None:
        return None
    from vllm.config import KVTransferConfig

    # Only a MultiConnector reads the list, and a selection can't name its children.
    return KVTransferConfig(kv_connector=connector, kv_role="kv_both", kv_connector_extra_config={"connectors": []})


@contextmanager
def requested_layout(name: str | None) -> Iterator[None]:
    """Set VLLM_KV_CACHE_LAYOUT to ``name`` (None: unset) while vLLM resolves."""
    before = os.environ.pop(ENVIRONMENT_VARIABLE, None)
    if name is not None:
        os.environ[ENVIRONMENT_VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT_VARIABLE, None)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before


def attention_groups(plan: Plan, groups: Iterable[object]) -> list[list[SimpleNamespace]]:
    """Return, for each of vLLM's groups, its backends with the spec that each serves there, each pair once."""
    served = []
    for group in groups:
        pairs = {}
        for name, spec in specs_of_group(group).items():
            if name in plan.backends:
                pair = SimpleNamespace(backend=DeclaredBackend(plan.backends[name]), kv_cache_spec=spec)
                pairs.setdefault((plan.backends[name].name, spec), pair)
        served.append(list(pairs.values()))
    return served


def specs_of_group(group: object) -> dict[str, object]:
    """Return {layer: spec} of one of vLLM's groups."""
    inner = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return {name: group.kv_cache_spec if inner is None else inner[name] for name in group.layer_names}
