"""A backend of vLLM and what it declares about the KV cache, as recorded for a release.

A :class:`Backend` has the methods that vLLM asks its ``AttentionBackend`` classes, so that either can be handed to
the resolver and to the planning. The facts are in ``data/backends-VERSION.json``, written by
``python -m kvlayout.facts.record_backends``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from kvlayout.candidates import common_layouts
from kvlayout.errors import LayoutError, check_int
from kvlayout.facts.interiors import interior_of
from kvlayout.facts.machine import Machine, holds, is_decided
from kvlayout.facts.repack import RULES, Rule
from kvlayout.interior import Interior
from kvlayout.layout import KVCacheLayout
from kvlayout.spec import AttentionSpec, KVCacheSpec, MultipleOf
from kvlayout.spec_io import as_spec
from kvlayout.versions import NEWEST, at_least

# What a backend is asked before it is chosen -> the method of vLLM's that is asked.
SUPPORTS = {question: f"supports_{question}" for question in ("head_size", "block_size", "dtype", "kv_cache_dtype")}


@dataclass(frozen=True)
class Branch:
    """One way an answer can go: ``value``, if the condition ``when`` of vLLM's source holds; None always does.

    ``expression`` instead of ``value``: the source computes it.
    """

    when: str | None
    value: tuple | None = None
    expression: str | None = None

    @property
    def is_decided(self) -> bool:
        """Whether a Machine and a spec decide the condition; if not, it counts as "no"."""
        return is_decided(self.when)


@dataclass(frozen=True)
class Backend:
    """An attention backend of one vLLM release.

    Attributes:
        name: its name here: the enum's where it has one, else vLLM's or the end of its class path
        class_path, bases: the class and its vLLM base classes, nearest first, as dotted paths
        vllm_name: what the class calls itself (``get_name()``); several may share it
        vllm_version: the release
        registry: "attention" or "mamba", the enum that lists it; None for one that only a model's code names
        platforms: of "cuda", "rocm", "cpu", "xpu": where it runs; ("any",) where nothing in the source says
        layouts: supported layouts as recorded on a CPU, most preferred first; None for any
        layout_branches, kernel_block_branches: every way the answers can go, empty where there is only one
        kernel_block_sizes: tokens, exact or MultipleOf; None where it takes a spec to say
        dtypes, kv_cache_dtypes, head_sizes: what it takes; no head sizes means any
        is_mla, is_sparse, is_ssm: latent attention; reads a selection of tokens; keeps recurrent state
        repacked_by: the class whose ``customize_spec`` it uses; None if pages stay as they are
        parts: class paths of the two backends that a composite sends requests to
        from_source, reason: read from the source instead of asked, and why
        machine: the hardware and settings that it answers for
        branch: index of the layout branch that answers whatever the machine; None lets the machine decide
    """

    name: str
    class_path: str
    vllm_name: str
    vllm_version: str = NEWEST
    registry: str | None = None
    platforms: tuple[str, ...] = ("any",)
    layouts: tuple[str, ...] | None = None
    layout_branches: tuple[Branch, ...] = ()
    kernel_block_sizes: tuple[int | MultipleOf, ...] | None = None
    kernel_block_branches: tuple[Branch, ...] = ()
    dtypes: tuple[str, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = ()
    is_mla: bool = False
    is_sparse: bool = False
    is_ssm: bool = False
    repacked_by: str | None = None
    bases: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    from_source: bool = False
    reason: str | None = None
    machine: Machine = field(default=Machine())
    branch: int | None = None

    def get_name(self) -> str:
        """Return what the class calls itself, as in vLLM."""
        return self.vllm_name

    def on(self, machine: Machine) -> Backend:
        """Return the same backend as it answers on ``machine``."""
        return replace(self, machine=machine)

    def with_branch(self, index: int) -> Backend:
        """Return the same backend with the layout branch ``index`` as its answer."""
        check_int("branch", index, minimum=0)
        if index >= len(self.layout_branches):
            raise LayoutError("branch", index, f"is not a layout branch of {self.name}, which has "
                              f"{len(self.layout_branches)}", "Choose an index of its layout_branches")
        return replace(self, branch=index)

    def supported_kv_cache_layouts(self) -> tuple[KVCacheLayout, ...] | None:
        """Return the layouts that its kernels take on its machine, most preferred first; None for any."""
        if self.parts:
            pairs = [(part.name, part.supported_kv_cache_layouts()) for part in self._part_backends()]
            return common_layouts(pairs).layouts
        if self.branch is not None:
            names = self.layout_branches[self.branch].value
        else:
            chosen = next((one for one in self.layout_branches if holds(one.when, self.machine)), None)
            names = chosen.value if chosen else self.layouts
        return None if names is None else tuple(KVCacheLayout[name] for name in names)

    def get_supported_kernel_block_sizes(self, spec: KVCacheSpec | None = None) -> list[int | MultipleOf]:
        """Return the kernel block sizes in tokens, exact or MultipleOf; some depend on the spec or the machine."""
        spec = None if spec is None else as_spec(spec)
        if self.short_class == "Glm5NextIndexerBackend":
            return self._pooled_block_sizes(spec)
        chosen = next((one for one in self.kernel_block_branches if holds(one.when, self.machine, spec)), None)
        return list(chosen.value if chosen else self.kernel_block_sizes)

    def customize_spec(self, spec: KVCacheSpec) -> KVCacheSpec:
        """Return ``spec`` as this backend repacks its page; LayoutError where it can't hold such a page."""
        spec = as_spec(spec)
        if self.parts:
            first, second = (part.customize_spec(spec) for part in self._part_backends())
            if first != second:
                raise LayoutError("spec", spec, f"is repacked in two ways by the parts of {self.name}",
                                  "Choose one of the parts, or a KV cache dtype that both keep alike")
            return first
        if self.rule is None:
            return spec
        if not isinstance(spec, AttentionSpec):
            raise LayoutError("spec", type(spec).__name__, f"is no attention spec, which {self.name} needs")
        return self.rule.apply(spec, self)

    def interior(self, spec: KVCacheSpec, layout: KVCacheLayout | None = None) -> Interior | None:
        """Return the named fields inside a page of ``spec`` (already customised); None for the default interior.

        ``layout`` matters where a page-wide order follows H and N; None stands for H outside N, as such backends ask.
        """
        spec = as_spec(spec)
        if self.parts:
            return self._part_backends()[0].interior(spec, layout)
        return interior_of(self, spec, layout)

    @property
    def rule(self) -> Rule | None:
        """How it repacks a page; None if it doesn't."""
        return RULES[self.repacked_by.rpartition(".")[2]] if self.repacked_by else None

    @property
    def short_class(self) -> str:
        """The class name without its module."""
        return self.class_path.rpartition(".")[2]

    def is_a(self, *class_names: str) -> bool:
        """Whether the class or one of its bases has one of these names, module left out."""
        return any(path.rpartition(".")[2] in class_names for path in (self.class_path, *self.bases))

    def _part_backends(self) -> list[Backend]:
        listed = {backend.class_path: backend for backend in load(self.vllm_version).values()}
        return [listed[path].on(self.machine) for path in self.parts]

    def _pooled_block_sizes(self, spec: KVCacheSpec | None) -> list[int]:
        """Source: vLLM 0.32.0, ``Glm5NextIndexerBackend`` and ``get_paged_mqa_page_sizes``."""
        if spec is None:
            raise LayoutError("spec", spec, f"must be given: the block sizes of {self.name} are multiples of the "
                              "tokens that its model pools into a state", "Give the layer's spec")
        return [int(spec.tokens_per_state) * rows for rows in ((64,) if self.machine.cuda_major == 12 else (32, 64))]


def load(vllm_version: str) -> dict[str, Backend]:
    """Return {name: Backend} of a release, sorted by name. Shared: don't change it."""
    at_least(vllm_version, NEWEST)  # refuses an unknown release, also one that no cache could look up
    return _backends(vllm_version)


@cache
def _backends(vllm_version: str) -> dict[str, Backend]:
    listed = _read(vllm_version)["backends"]
    return {name: _backend(name, vllm_version, facts) for name, facts in listed.items()}


def placeholders(vllm_version: str) -> dict[str, str]:
    """Return {name: reason} of the enum's names that stand for no class of vLLM's."""
    return _read(vllm_version)["placeholders"]


@cache
def _read(vllm_version: str) -> dict:
    at_least(vllm_version, NEWEST)  # refuses an unknown release
    return json.loads((files("kvlayout.facts") / "data" / f"backends-{vllm_version}.json").read_text())


def _backend(name: str, vllm_version: str, facts: dict) -> Backend:
    values = {key: _plain(value) for key, value in facts.items()}
    for key in ("layout_branches", "kernel_block_branches"):
        values[key] = tuple(Branch(**{part: _plain(value) for part, value in one.items()})
                            for one in facts.get(key, []))
    return Backend(name=name, vllm_version=vllm_version, **values)


def _plain(value: object) -> object:
    if isinstance(value, list):
        return tuple(MultipleOf(item["multiple_of"]) if isinstance(item, dict) and "multiple_of" in item else item
                     for item in value)
    return value
