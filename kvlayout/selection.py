"""A user's choices: one frozen, JSON-able value from which everything shown is computed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

import msgspec

from kvlayout.errors import LayoutError, check_int
from kvlayout.facts.machine import Machine
from kvlayout.layout import as_layout, layout_from_name
from kvlayout.versions import NEWEST, VLLM_VERSIONS

# Each with the least that it may be.
_WHOLE_NUMBERS = {"tp_size": 1, "pp_size": 1, "pp_rank": 0, "block_size": 1, "kernel_block_size": 1,
                  "max_model_len": 1, "num_blocks": 0, "available_memory": 0}


@dataclass(frozen=True)
class Selection:
    """What cache to plan. The same value always gives the same :class:`~kvlayout.plan.Plan`.

    Attributes:
        model: a preset's name, a Hugging Face config.json as a dict, or a captured config (see ``kvlayout.captured``)
        tp_size, pp_size, pp_rank: tensor-parallel size; pipeline stages and which of them is planned
        kv_cache_dtype: vLLM's ``--kv-cache-dtype``: "auto", "fp8", "int8_per_token_head" ...
        backend: an attention backend's name; None picks what vLLM takes for the model on a Hopper GPU, whatever
            ``machine`` says
        layout: a layout's name to force, unchecked, as a value already on vLLM's cache_config would; any order of the
            letters LBHNC, vLLM's or not; None resolves
        requested: the value of VLLM_KV_CACHE_LAYOUT; must be a candidate
        connector: a KV connector's name, whose wish counts if it is a candidate
        block_size: tokens a block; None takes what the backend prefers
        kernel_block_size: tokens a kernel block; None takes what vLLM would
        num_blocks: blocks to plan; or else
        available_memory: bytes to fill with blocks
        max_model_len: tokens, None as the model's config says; only models of state layers alone depend on it
        disable_hybrid_kv_cache_manager: vLLM's option of that name
        device: "cpu", "cuda:i" or "meta", for allocation only
        machine: the hardware and settings that backends ask about; by default what the catalogue was recorded on
        vllm_version: the release to reproduce
    """

    model: str | dict = "Qwen/Qwen3-0.6B"
    tp_size: int = 1
    pp_size: int = 1
    pp_rank: int = 0
    kv_cache_dtype: str = "auto"
    backend: str | None = None
    layout: str | None = None
    requested: str | None = None
    connector: str | None = None
    block_size: int | None = None
    kernel_block_size: int | None = None
    num_blocks: int | None = None
    available_memory: int | None = None
    max_model_len: int | None = None
    disable_hybrid_kv_cache_manager: bool = False
    device: str = "cpu"
    machine: Machine = Machine()
    vllm_version: str = NEWEST

    def __post_init__(self):
        for name, minimum in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if value is not None or name in ("tp_size", "pp_size", "pp_rank"):
                object.__setattr__(self, name, check_int(name, value, minimum=minimum))
        if self.num_blocks is not None and self.available_memory is not None:
            raise LayoutError("available_memory", self.available_memory,
                              f"can't be given together with num_blocks={self.num_blocks}", "Give one of the two")
        if self.pp_rank >= self.pp_size:
            raise LayoutError("pp_rank", self.pp_rank, f"must be below pp_size={self.pp_size}")
        if self.layout is not None:
            _check_layout(self.layout)
        if self.requested is not None:
            layout_from_name(self.requested, "requested")
        if self.vllm_version not in VLLM_VERSIONS:
            raise LayoutError("vllm_version", self.vllm_version, "is not a release this library reproduces",
                              f"Choose one of {', '.join(VLLM_VERSIONS)}")

    def to_json(self) -> str:
        """Return the choices that differ from the defaults, as JSON."""
        return json.dumps({"model": self.model, **_changed(self)}, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Selection:
        """Return the selection written by :meth:`to_json`; LayoutError for anything else."""
        return cls.from_dict(decode_json(text, "selection"))

    @classmethod
    def from_dict(cls, data: object) -> Selection:
        """Return the selection of a dict; LayoutError for an unknown field or a value of another type."""
        if not isinstance(data, dict):
            raise LayoutError("selection", data, "must be a JSON object of a Selection's fields")
        _check_names("selection", data, cls)
        if isinstance(data.get("machine"), dict):
            _check_names("machine", data["machine"], Machine)
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, LayoutError):
                raise error.__cause__ from None
            reason, _, path = str(error).partition(" - at ")
            name = path.strip("`").removeprefix("$.") or "selection"
            raise LayoutError(name, data.get(name, data), f"has the wrong type: {reason}") from None

    def to_dict(self) -> dict:
        """Return every choice as a plain dict."""
        return asdict(self)


def _check_layout(layout: object) -> None:
    """Raise LayoutError unless ``layout`` is a layout's name."""
    if not isinstance(layout, str):
        layout_from_name(layout)
    as_layout(layout)


def _changed(value: Selection | Machine) -> dict:
    """Return the fields that differ from their default."""
    found = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
    return {name: _changed(one) if isinstance(one, Machine) else one for name, one in found.items()}


def _check_names(argument: str, data: dict, kind: type) -> None:
    known = [f.name for f in fields(kind)]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise LayoutError(argument, unknown, f"are not fields of a {kind.__name__}", f"Use {', '.join(known)}")


def decode_json(text: str | bytes, what: str) -> object:
    """Return the value of strict JSON (no NaN, no trailing text); LayoutError saying where it breaks."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError) as error:
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        raise LayoutError(what, shown, f"is not JSON: {error}") from error
