"""Models: presets with true figures, any Hugging Face config.json, or specs given by hand.

A preset is a config.json, trimmed to what the cache depends on, with its source; it goes through the same reader as a
user's own file. ``Model.kv_cache_specs`` gives one rank's specs as vLLM's layers report them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from kvlayout.dtypes import dtype_name
from kvlayout.entry_points import Plugin, read_plugins
from kvlayout.errors import LayoutError, check_int
from kvlayout.facts.backends import as_backend, get_backend
from kvlayout.facts.hf_config import Architecture, load_config, read_config
from kvlayout.facts.hybrid import MAMBA_CACHE_MODES, align_hybrid_block_size
from kvlayout.facts.kv_dtypes import CacheDtype, native_layers, resolve_kv_cache_dtype
from kvlayout.facts.layers import Serving
from kvlayout.facts.parallel import get_pp_indices
from kvlayout.facts.states import STATE_KINDS
from kvlayout.spec import KVCacheSpec, MambaSpec, MLAAttentionSpec
from kvlayout.spec_io import as_spec
from kvlayout.versions import NEWEST, at_least

_COMMON_BACKENDS = {"mla": "FLASH_ATTN_MLA", "sparse mla": "FLASHMLA_SPARSE", "indexer": "DEEPSEEK_V32_INDEXER",
                    "mamba1": "MAMBA1", "mamba2": "MAMBA2", "gdn": "GDN_ATTN"}


@dataclass(frozen=True)
class Model:
    """A model whose KV cache can be planned.

    Attributes:
        name: the preset's name, or the one given
        title: for people
        source: where its figures come from
        kind: "dense", "sliding", "sliding hybrid", "chunked hybrid", "mla", "sparse mla", "mamba", "mamba hybrid",
            "encoder-decoder", "diffusion" or "specs" (given by hand)
        config: the Hugging Face config; empty for a model given by specs
        architecture: what was read from it; None for a model given by specs
        specs: the specs given by hand; None otherwise
    """

    name: str
    title: str
    source: str
    kind: str
    config: dict = field(default_factory=dict, hash=False, repr=False)
    architecture: Architecture | None = field(default=None, hash=False, repr=False)
    specs: dict[str, KVCacheSpec] | None = field(default=None, hash=False, repr=False)

    STATE_KINDS = STATE_KINDS

    @property
    def layer_kinds(self) -> dict[str, str]:
        """{layer name: "attention", "sliding", "chunked", "cross", "mla", "indexer", "mamba1", "mamba2" or "gdn"}."""
        if self.specs is not None:
            return {name: _kind_of_spec(spec) for name, spec in self.specs.items()}
        return {layer.name: layer.kind for layer in self.architecture.layers}

    @property
    def is_hybrid(self) -> bool:
        """Whether it has layers with recurrent states beside attention, so that vLLM aligns their pages."""
        kinds = set(self.layer_kinds.values())
        return bool(kinds & STATE_KINDS) and not kinds <= STATE_KINDS

    def stage_layers(self, pp_size: int) -> list[list[str]]:
        """Return each pipeline stage's layer names, in order; a stage may have none that cache.

        LayoutError where vLLM can't serve the model in stages, or there are more stages than layers.
        """
        check_int("pp_size", pp_size, minimum=1)
        if pp_size == 1:
            return [list(self.layer_kinds)]
        if self.architecture is None or not self.architecture.splits_layers:
            raise LayoutError("pp_size", pp_size, f"isn't possible: {self.name} can't be split into pipeline stages",
                              "Use pp_size=1")
        layers = self.architecture.num_layers
        if pp_size > layers:
            raise LayoutError("pp_size", pp_size, f"is more stages than the {layers} layers")
        bounds = [get_pp_indices(layers, rank, pp_size) for rank in range(pp_size)]
        return [[layer.name for layer in self.architecture.layers if first <= layer.index < end]
                for first, end in bounds]

    def backend_name(self, kind: str, chosen: str | None = None, *, vllm_version: str = NEWEST) -> str:
        """Return the backend that serves layers of ``kind``: ``chosen`` for attention, else vLLM's common one.

        The common ones are what vLLM 0.33.0 takes on a Hopper GPU; indexers and states have one of their own.
        LayoutError for a chosen one that reads no latents where the layer keeps latents, or the other way round.
        """
        if kind in STATE_KINDS or kind == "indexer":
            return _COMMON_BACKENDS[kind]
        is_sparse = kind == "mla" and "indexer" in self.layer_kinds.values()
        if chosen is None:
            return _COMMON_BACKENDS["sparse mla" if is_sparse else kind] if kind == "mla" else "FLASH_ATTN"
        backend = get_backend(chosen, vllm_version)
        if backend.is_mla != (kind == "mla") or (is_sparse and not backend.is_sparse):
            wanted = ("sparse " if is_sparse else "") + ("latent" if kind == "mla" else "plain")
            raise LayoutError("backend", chosen, f"can't serve {self.name}, which has {wanted} attention",
                              f"Use one such as {self.backend_name(kind)}")
        return chosen

    def kv_cache_specs(
        self,
        *,
        tp_size: int = 1,
        pp_size: int = 1,
        pp_rank: int | None = None,
        block_size: int = 16,
        kv_cache_dtype: str = "auto",
        dtype: str | None = None,
        max_model_len: int | None = None,
        mamba_cache_mode: str | None = None,
        backend: object = None,
        vllm_version: str = NEWEST,
    ) -> dict[str, KVCacheSpec]:
        """Return {layer name: spec} of one rank, in layer order, before the backend repacks and before grouping.

        ``pp_rank`` None gives the layers of all stages. ``block_size`` is in tokens. ``dtype`` is vLLM's
        ``--dtype``, None as the config says. ``max_model_len``: tokens, None as the config says; only a state
        layer's block depends on it. ``mamba_cache_mode``: None as vLLM would, "align" for hybrids and "none"
        without attention. ``backend``: the attention layers'; it decides a sliding window's block and how
        quantised latents are kept. Specs given by hand are returned as they are and can't be sharded.

        Hybrids still need their block size raised: :meth:`aligned_kv_cache_specs`.
        Raises LayoutError for what vLLM would refuse.
        """
        at_least(vllm_version, vllm_version)  # refuses an unknown release
        check_int("tp_size", tp_size, minimum=1)
        check_int("block_size", block_size, minimum=1)
        names = self._names(pp_size, pp_rank)
        if self.specs is not None:
            for argument, value, kept in (("tp_size", tp_size, 1), ("kv_cache_dtype", kv_cache_dtype, "auto")):
                if value != kept:
                    raise LayoutError(argument, value, f"can't be applied: {self.name} is given by its specs",
                                      f"Give the specs as one rank has them, and {argument}={kept!r}")
            return {name: self.specs[name] for name in names}
        heads = self.architecture.num_attention_heads
        if heads % tp_size:
            raise LayoutError("tp_size", tp_size, f"doesn't divide the {heads} attention heads")
        if max_model_len is not None:
            check_int("max_model_len", max_model_len, minimum=1)
        serving = self._serving(tp_size, block_size, kv_cache_dtype, dtype, max_model_len, mamba_cache_mode, backend,
                                vllm_version)
        kept = set(names)
        return {layer.name: layer.spec(serving) for layer in self.architecture.layers if layer.name in kept}

    def aligned_kv_cache_specs(
        self, *, backend: object = None, checkpoint_alignment: int = 1, **choices
    ) -> dict[str, KVCacheSpec]:
        """Return :meth:`kv_cache_specs` with the block size that vLLM raises for attention beside recurrent states.

        Other models are returned unaligned. ``choices`` are those of :meth:`kv_cache_specs`; see
        :func:`~kvlayout.facts.hybrid.align_hybrid_block_size` for the rest.
        """
        specs = self.kv_cache_specs(backend=backend, **choices)
        if not self.is_hybrid:
            return specs
        version = choices.get("vllm_version", NEWEST)
        return align_hybrid_block_size(
            specs, backend=_as_backend(backend, version), checkpoint_alignment=checkpoint_alignment,
            mamba_chunk_size=self.architecture and self.architecture.mamba_chunk_size, vllm_version=version)

    def _names(self, pp_size: int, pp_rank: int | None) -> list[str]:
        stages = self.stage_layers(pp_size)
        if pp_rank is None:
            return list(self.layer_kinds)
        if check_int("pp_rank", pp_rank, minimum=0) >= pp_size:
            raise LayoutError("pp_rank", pp_rank, f"must be below pp_size={pp_size}")
        return stages[pp_rank]

    def _serving(self, tp_size, block_size, kv_cache_dtype, dtype, max_model_len, mode, backend, version) -> Serving:
        read = self.architecture
        dtype = read.dtype if dtype is None else dtype_name(dtype)
        if dtype is None:
            raise LayoutError("dtype", None, f"isn't in the config of {self.name}",
                              'Add "dtype" to the config, or give dtype')
        if mode is None:
            mode = "none" if read.kind == "mamba" else "align"
        modes = [name for name, last in MAMBA_CACHE_MODES.items() if last is None or not at_least(version, last)]
        if mode not in modes:
            raise LayoutError("mamba_cache_mode", mode, f"is not a cache mode of vLLM {version}",
                              f"Use one of {', '.join(modes)}")
        cache_dtype = self._cache_dtype(kv_cache_dtype, dtype, version)
        return Serving(tp_size, block_size, dtype, cache_dtype, max_model_len or read.max_model_len, mode,
                       _as_backend(backend, version), version,
                       native_layers(cache_dtype.name, read.num_layers, self.is_hybrid))

    def _cache_dtype(self, name: str, dtype: str, version: str) -> CacheDtype:
        if name == "auto":
            name = self.architecture.kv_cache_dtype
        elif name == "bfloat16" and self.architecture.model_type == "deepseek_v32":
            name = "auto"  # vLLM renames it for this model
        return resolve_kv_cache_dtype(name, dtype, version)


def _as_backend(backend: object, version: str) -> object:
    return None if backend is None else as_backend(backend, version)


def _kind_of_spec(spec: KVCacheSpec) -> str:
    """The layer kind that a spec given by hand stands for."""
    if isinstance(spec, MambaSpec):
        return {"gdn_attn": "gdn", "mamba1": "mamba1"}.get(spec.mamba_type, "mamba2")
    if isinstance(spec, MLAAttentionSpec):
        return "indexer" if spec.cache_role == "indexer" else "mla"
    name = type(spec).__name__
    return {"SlidingWindowSpec": "sliding", "ChunkedLocalAttentionSpec": "chunked",
            "CrossAttentionSpec": "cross"}.get(name, "mla" if name == "SlidingWindowMLASpec" else "attention")


def model_from_config(config: dict | str | Path, name: str | None = None) -> Model:
    """Return the model of a Hugging Face config: a dict, JSON text, or the path of a config.json or its folder.

    LayoutError where a field is missing, odd, or of a model type that isn't known.
    """
    values = load_config(config)
    architecture = read_config(values)
    given = values.get("_name_or_path") if isinstance(values.get("_name_or_path"), str) else None
    name = name or given or architecture.model_type
    source = "a config given as a dict" if isinstance(config, dict) else str(config)
    return Model(name, name, source, architecture.kind, values, architecture)


def model_from_specs(name: str, specs: Mapping[str, object]) -> Model:
    """Return a model of given specs, one rank's: {layer name: spec, ours or vLLM's}, in layer order."""
    if not isinstance(specs, Mapping) or not specs:
        raise LayoutError("specs", specs, "must map at least one layer name to its spec")
    for layer in specs:
        if not isinstance(layer, str) or not layer:
            raise LayoutError("specs", layer, "is not a layer's name")
    return Model(name, name, "specs given by hand", "specs",
                 specs={layer: as_spec(spec, layer) for layer, spec in specs.items()})


@cache
def _presets() -> dict[str, Model]:
    listed = json.loads((files("kvlayout.facts") / "data" / "models" / "presets.json").read_text(encoding="utf-8"))
    presets = {}
    for name, preset in listed.items():
        architecture = read_config(preset["config"])
        presets[name] = Model(name, preset["title"], preset["source"], architecture.kind, preset["config"],
                              architecture)
    return presets


def presets() -> dict[str, Model]:
    """Return {name: Model} of the presets, by the names that their makers published them under, then of plugins."""
    return {**_presets(), **plugin_models()}


@cache
def plugin_models() -> dict[str, Model]:
    """Return {name: Model} of what plugins register. Shared: don't change it."""
    published = {name.lower(): name for name in _presets()}

    def refuse(name: str) -> str:
        taken = published.get(name.lower())
        return f"{taken} is a preset" if taken else ""

    def make(plugin: Plugin) -> Model:
        model = plugin.value if isinstance(plugin.value, Model) else model_from_config(plugin.value)
        return replace(model, name=plugin.name, title=plugin.name, source=f"a plugin of {plugin.package}")

    return read_plugins("models", refuse, make)


def get_preset(name: str) -> Model:
    """Return the preset of that name; its last part alone, in any case, is enough. LayoutError names the nearest."""
    wanted = str(name).lower()
    for known in (_presets(), presets()):  # a plugin takes no preset's short name
        if name in known:
            return known[name]
        found = [model for full, model in known.items() if wanted in (full.lower(), full.lower().rpartition("/")[2])]
        if len(found) == 1:
            return found[0]
    near = difflib.get_close_matches(wanted, [full.lower() for full in known], n=3, cutoff=0.4)
    nearest = [full for full in known if full.lower() in near]
    raise LayoutError("model", name, "is not a preset",
                      f"Did you mean {' or '.join(nearest)}" if nearest else f"Use one of {', '.join(known)}")
