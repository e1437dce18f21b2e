"""What can I run? A backend's recorded facts against what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvlayout.bench.outcomes import UNKNOWN, block_size_outcomes, takes_block
from kvlayout.dtypes import dtype_name
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.facts.catalogue import Backend
from kvlayout.facts.machine import PLATFORMS
from kvlayout.facts.user_backend import UserBackend
from kvlayout.spec import MultipleOf


@dataclass(frozen=True)
class Wanted:
    """What a backend must be able to do; None asks nothing.

    Attributes:
        platform: "cuda", "rocm", "cpu" or "xpu"
        dtype: a model's element type ("bfloat16"), or a value of ``--kv-cache-dtype`` ("fp8")
        mla: True for latent attention, False for keys and values; what keeps recurrent state is neither
        head_size: elements
        block_size: tokens a block
    """

    platform: str | None = None
    dtype: str | None = None
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

    def check_dtype(self, backends: dict[str, Backend]) -> None:
        """Raise LayoutError for a dtype that no backend of the release names."""
        known = sorted({name for one in backends.values() for name in (*one.dtypes, *one.kv_cache_dtypes)})
        if self.dtype is not None and self._dtype not in known:
            raise LayoutError("dtype", self.dtype, "is not an element type that any backend of the release names",
                              f"Use one of {', '.join(known)}")

    @property
    def _dtype(self) -> str:
        try:
            return dtype_name(self.dtype)
        except LayoutError:
            return self.dtype  # one of --kv-cache-dtype's own, such as "fp8"

    def answers(self, backend: Backend) -> tuple[list[str], list[str]]:
        """Return (why the backend can't, what isn't recorded or depends), one sentence each."""
        against, open_ = [], []
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None:
                continue
            can, sentence = getattr(self, f"_{one.name}_answer")(backend)
            if can is False:
                against.append(sentence if one.name == "mla" else f"{sentence}, not {value}")
            elif can is None:
                open_.append(sentence)
        return against, open_

    def _platform_answer(self, backend: Backend) -> tuple[bool | None, str]:
        if backend.platforms == ("any",):
            return None, f"where it runs is {UNKNOWN}"
        return self.platform in backend.platforms, f"runs on {_listed(backend.platforms)}"

    def _dtype_answer(self, backend: Backend) -> tuple[bool | None, str]:
        kind, known = "model", backend.dtypes
        if self._dtype not in ("float16", "bfloat16", "float32"):
            kind, known = "KV cache", backend.kv_cache_dtypes
        if not known:
            return None, f"its {kind} dtypes are {UNKNOWN}"
        return self._dtype in known, f"takes {kind} dtypes {_listed(known)}"

    def _mla_answer(self, backend: Backend) -> tuple[bool | None, str]:
        if isinstance(backend, UserBackend) and not hasattr(backend.asked, "is_mla"):
            return None, f"whether it keeps latents (MLA) is {UNKNOWN}"
        if backend.is_ssm:
            return False, "keeps recurrent state"
        return backend.is_mla == self.mla, f"keeps {'latents (MLA)' if backend.is_mla else 'keys and values'}"

    def _head_size_answer(self, backend: Backend) -> tuple[bool | None, str]:
        if not backend.head_sizes:
            # An empty list is any size for vLLM's base class; some have checks beside it, which aren't recorded.
            asked = not backend.from_source and not isinstance(backend, UserBackend)
            return None, ("lists no head sizes, but may check them" if asked else
                          f"its head sizes are {UNKNOWN}")
        return self.head_size in backend.head_sizes, f"takes head sizes {_listed(backend.head_sizes)}"

    def _block_size_answer(self, backend: Backend) -> tuple[bool | None, str]:
        ways = block_size_outcomes(backend, self.platform)
        can = {None if one.value == UNKNOWN else takes_block(one.value, self.block_size) for one in ways}
        shown = "; ".join(f"{_sizes(one.value)}{'' if one.when is None else f' if {one.when}'}" for one in ways)
        if can == {None}:
            return None, f"its kernel block sizes are {UNKNOWN}"
        if len(can) == 1:
            return can.pop(), f"takes kernel blocks of {shown} tokens (blocks that these divide)"
        return None, f"whether it takes blocks of {self.block_size} tokens depends: {shown}"


def _listed(values: tuple) -> str:
    return ", ".join(map(str, values))


def _sizes(sizes: tuple | str) -> str:
    if sizes == UNKNOWN:
        return UNKNOWN
    return " or ".join(f"multiples of {one.base}" if isinstance(one, MultipleOf) else str(one) for one in sizes)
