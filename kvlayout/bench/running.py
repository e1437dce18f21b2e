"""What can I run? A backend's recorded facts against what is asked of it.

Each question is answered as vLLM's ``supports_head_size``, ``supports_block_size``, ``supports_dtype`` and
``supports_kv_cache_dtype`` would; what vLLM checks beside them (compute capability, kinds of attention, sinks, and
combinations of these) isn't asked here. Source: vLLM 0.29.0 to 0.33.0, ``vllm/v1/attention/backend.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from kvlayout.bench.checks import own_check, passes
from kvlayout.bench.outcomes import UNKNOWN, block_size_outcomes, takes_block
from kvlayout.dtypes import dtype_name
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.facts.catalogue import SUPPORTS, Backend, load
from kvlayout.facts.machine import PLATFORMS
from kvlayout.facts.user_backend import UserBackend

_WORDS = {"head_size": "head size", "block_size": "blocks of", "dtype": "model dtype",
          "kv_cache_dtype": "KV cache dtype"}

# Where a platform runs another class than the enum's, a row of its own. Source: vLLM 0.32.0, ``platforms/xpu.py``.
_STANDS_FOR = {("FLASH_ATTN_MLA", "xpu"): "XPUFlashAttnMLABackend"}


@dataclass(frozen=True)
class Wanted:
    """What a backend must be able to do; None asks nothing.

    Attributes:
        platform: "cuda", "rocm", "cpu" or "xpu"
        dtype: a model's element type, such as "bfloat16"
        kv_cache_dtype: a value of ``--kv-cache-dtype``, such as "auto" or "fp8"
        mla: True for latent attention, False for keys and values; what keeps recurrent state is neither
        head_size: elements
        block_size: tokens a block
    """

    platform: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    mla: bool | None = None
    head_size: int | None = None
    block_size: int | None = None

    def __post_init__(self):
        if self.platform is not None and self.platform not in PLATFORMS:
            raise LayoutError("platform", self.platform, "is not a platform of vLLM",
                              f"Use one of {', '.join(PLATFORMS)}")
        if self.mla is not None:
            check_type("mla", self.mla, bool)
        for name in ("head_size", "block_size"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1)

    def check_dtypes(self, backends: dict[str, Backend]) -> None:
        """Raise LayoutError for a dtype that no backend of the release names."""
        models, caches = ({name for one in backends.values() for name in getattr(one, lists)}
                          for lists in ("dtypes", "kv_cache_dtypes"))
        if self.dtype is not None and self._dtype not in models:
            cure = (f"Ask for it with kv_cache_dtype={self.dtype!r}" if self.dtype in caches
                    else f"Use one of {', '.join(sorted(models))}")
            raise LayoutError("dtype", self.dtype, "is no element type that a backend of the release computes with",
                              cure)
        if self.kv_cache_dtype is not None and self.kv_cache_dtype not in caches:
            raise LayoutError("kv_cache_dtype", self.kv_cache_dtype, "is no KV cache dtype that a backend of the "
                              "release names", f"Use one of {', '.join(sorted(caches))}")

    @property
    def _dtype(self) -> str:
        try:
            return dtype_name(self.dtype)
        except LayoutError:
            return self.dtype

    def answers(self, backend: Backend) -> tuple[list[str], list[str]]:
        """Return (why the backend can't, what isn't recorded or depends), one sentence each."""
        against, open_ = [], []
        for one in fields(self):
            if getattr(self, one.name) is None:
                continue
            can, sentence = self.answer(one.name, backend)
            if can is False:
                against.append(sentence)
            elif can is None:
                open_.append(sentence)
        if backend.registry is None and not isinstance(backend, UserBackend) and self != Wanted():
            open_.append("no option names it: a model's own code chooses it")
        return against, open_

    def answer(self, name: str, backend: Backend) -> tuple[bool | None, str]:
        """Return (can, the sentence that says why not or what isn't settled) of one field; can is None if open."""
        return getattr(self, f"_{name}_answer")(backend)

    def _platform_answer(self, backend: Backend) -> tuple[bool | None, str]:
        if backend.platforms == ("any",):
            return None, f"where it runs is {UNKNOWN}"
        if (backend.name, self.platform) in _STANDS_FOR:
            return None, f"on {self.platform} vLLM runs {_STANDS_FOR[backend.name, self.platform]} in its place"
        return self.platform in backend.platforms, f"runs on {_listed(backend.platforms)}, not {self.platform}"

    def _dtype_answer(self, backend: Backend) -> tuple[bool | None, str]:
        return self._checked(backend, "dtype", self._dtype,
                             lambda one: _takes_dtype(one.dtypes, "model", self._dtype))

    def _kv_cache_dtype_answer(self, backend: Backend) -> tuple[bool | None, str]:
        return self._checked(backend, "kv_cache_dtype", self.kv_cache_dtype,
                             lambda one: _takes_dtype(one.kv_cache_dtypes, "KV cache", self.kv_cache_dtype))

    def _mla_answer(self, backend: Backend) -> tuple[bool | None, str]:
        if isinstance(backend, UserBackend) and not hasattr(backend.asked, "is_mla"):
            return None, f"whether it keeps latents (MLA) is {UNKNOWN}"
        if backend.is_ssm:
            return False, "keeps recurrent state"
        if backend.is_mla == self.mla and backend.is_sparse:
            return None, "reads a selection of tokens: for models with sparse attention alone"
        return backend.is_mla == self.mla, f"keeps {'latents (MLA)' if backend.is_mla else 'keys and values'}"

    def _head_size_answer(self, backend: Backend) -> tuple[bool | None, str]:
        return self._checked(backend, "head_size", self.head_size, self._listed_head_size)

    def _listed_head_size(self, backend: Backend) -> tuple[bool | None, str]:
        if not backend.head_sizes:
            if isinstance(backend, UserBackend):
                return None, f"its head sizes are {UNKNOWN}"
            return True, "lists no head sizes, which is any for vLLM"
        return (self.head_size in backend.head_sizes,
                f"takes head sizes {_listed(backend.head_sizes)}, not {self.head_size}")

    def _block_size_answer(self, backend: Backend) -> tuple[bool | None, str]:
        return self._checked(backend, "block_size", self.block_size, self._listed_block_size)

    def _listed_block_size(self, backend: Backend) -> tuple[bool | None, str]:
        ways = block_size_outcomes(backend, self.platform)
        can = {None if one.value == UNKNOWN else takes_block(one.value, self.block_size) for one in ways}
        shown = "; ".join(f"{_sizes(one.value)}{'' if one.when is None else f' if {one.when}'}" for one in ways)
        if can == {None}:
            return None, f"its kernel block sizes are {UNKNOWN}"
        if len(can) == 1:
            return can.pop(), (f"takes kernel blocks of {shown} tokens (blocks that these divide), "
                               f"not {self.block_size}")
        return None, f"whether it takes blocks of {self.block_size} tokens depends: {shown}"

    def _checked(self, backend: Backend, question: str, value: object, by_lists: Callable) -> tuple[bool | None, str]:
        """The class's own check where it has one; else what follows from the lists. A composite's parts all agree."""
        if backend.parts:
            listed = {one.class_path: one for one in load(backend.vllm_version).values()}
            parts = [self._checked(listed[path], question, value, by_lists) for path in backend.parts]
            # A composite has sizes of its own; its lists of dtypes are the base class's default.
            own = [by_lists(backend)] if question.endswith("size") else []
            return next((one for can in (False, None) for one in (*own, *parts) if one[0] is can), (True, ""))
        words = f"{_WORDS[question]} {value}"
        # vLLM's supports_dtype takes a torch.dtype; the lists say the same.
        if isinstance(backend, UserBackend) and question != "dtype" and hasattr(backend.asked, SUPPORTS[question]):
            return backend.supports(SUPPORTS[question], value), f"refuses {words} by its own {SUPPORTS[question]}()"
        can, sentence = by_lists(backend)
        if not own_check(backend, question):
            return can, sentence
        can, why = passes(backend, question, value, self.platform, can)
        return can, f"whether it takes {words} depends: {why}" if can is None else f"refuses {words}: its class {why}"


def _takes_dtype(known: tuple[str, ...], kind: str, dtype: str) -> tuple[bool | None, str]:
    if not known:
        return None, f"its {kind} dtypes are {UNKNOWN}"
    return dtype in known, f"takes {kind} dtypes {_listed(known)}, not {dtype}"


def _listed(values: tuple) -> str:
    return ", ".join(map(str, values))


def _sizes(sizes: tuple | str) -> str:
    if sizes == UNKNOWN:
        return UNKNOWN
    return " or ".join(map(str, sizes))
