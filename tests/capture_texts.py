"""Configs of every spec class, printed as vLLM prints its own, and what a log and a pasting person do to the text."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction

from hypothesis import strategies as st

from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.layout import KVCacheLayout
from kvlayout.spec import KVCacheSpec, KVQuantMode, MultipleOf, UniformTypeKVCacheSpecs
from kvlayout.spec_io import SPEC_TYPES

LAYER_CLASSES = sorted(set(SPEC_TYPES) - {"UniformTypeKVCacheSpecs"})
_names = st.lists(st.from_regex(r"model\.layers\.[0-9]{1,3}\.[a-z_]{1,9}(\.attn)?", fullmatch=True),
                  min_size=1, max_size=4, unique=True)
_small = st.integers(1, 300)
_VALUES = {
    "block_size": st.sampled_from([2, 4, 16]), "num_kv_heads": _small, "head_size": _small, "head_size_v": _small,
    "dtype": st.sampled_from(["int8", "bfloat16", "float8_e4m3fn"]), "kv_quant_mode": st.sampled_from(KVQuantMode),
    "page_size_padded": st.none() | st.just(10**9), "num_head_slots": st.none() | _small,
    "state_content_bytes": st.none() | _small, "tokens_per_state": st.sampled_from([1, 2, Fraction(1, 2)]),
    "block_stride_alignment": st.none() | _small | _small.map(MultipleOf), "dcp_sharded": st.booleans(),
    "is_draft": st.booleans(), "sliding_window": _small, "attention_chunk_size": _small, "rswa_window": _small,
    "sink_len": st.none() | _small, "alignment": st.none() | st.just(512),
    "cache_dtype_str": st.none() | st.just("fp8"),
    "cache_role": st.sampled_from(["sparse", "indexer"]), "model_version": st.none() | st.just("deepseek_v4"),
    "mamba_type": st.sampled_from(["mamba2", "gdn_attn"]), "mamba_cache_mode": st.sampled_from(["none", "align"]),
}


@st.composite
def layer_specs(draw, kind: str | None = None) -> KVCacheSpec:
    """A spec of any class that describes one layer, with values in all kinds of fields."""
    kind = SPEC_TYPES[kind or draw(st.sampled_from(LAYER_CLASSES))]
    names = {f.name for f in fields(kind)}
    values = {name: draw(value) for name, value in _VALUES.items() if name in names}
    if "shapes" in names:
        shapes = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3))
        values |= {"shapes": tuple(shapes), "dtypes": ("float32",) * len(shapes), "tokens_per_state": -1}
    return kind(**values)


@st.composite
def any_configs(draw) -> KVCacheConfig:
    """Configs whose numbers need not place anything sensible: what a text can say, not what vLLM would."""
    groups, tensors = [], []
    for _ in range(draw(st.integers(0, 3))):
        names = draw(_names)
        spec = draw(layer_specs())
        if draw(st.booleans()):
            spec = UniformTypeKVCacheSpecs(spec.block_size, {name: draw(layer_specs()) for name in names})
        groups.append(KVCacheGroupSpec(names, spec))
        numbers = draw(st.tuples(*[st.integers(0, 2**45)] * 4))
        tensors.append(KVCacheTensor(numbers[0], names, *numbers[1:]))
    layout = draw(st.none() | st.sampled_from([one.name for one in KVCacheLayout]))
    return KVCacheConfig(draw(st.integers(0, 2**31)), tensors, groups, layout)


def vllm_repr(value: object, name: str = "") -> str:
    """Return the text that vLLM's own object of this content prints: lists, torch dtypes, enums, later fields."""
    if isinstance(value, KVQuantMode):
        return f"<KVQuantMode.{value.name}: {value.value}>"
    if name in ("mamba_type", "cache_role"):
        kind = "MambaAttentionBackendEnum" if name == "mamba_type" else "SparseCacheRole"
        return f"<{kind}.{value.upper()}: 'a.B'>"
    if isinstance(value, MultipleOf):
        return f"MultipleOf({value.base})"
    if name == "dtype":
        return f"torch.{value}"
    if name == "dtypes":
        return f"({''.join(f'torch.{one}, ' for one in value)})"
    if isinstance(value, (KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, KVCacheSpec)):
        inner = [f"{f.name}={vllm_repr(getattr(value, f.name), f.name)}" for f in fields(value)]
        return f"{type(value).__name__}({', '.join([*inner, *LATER.get(type(value), ())])})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {vllm_repr(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple) and name != "shapes":
        return "[" + ", ".join(vllm_repr(one) for one in value) + "]"
    return repr(value)


LATER = {
    KVCacheTensor: ("host_resident=False",),
    KVCacheGroupSpec: ("is_eagle_group=False", "role=<KVCacheGroupRole.DEFAULT: 'default'>"),
    KVCacheConfig: ("hash_block_size=16", "a_field_of_tomorrow=Thing(x={'y': [1.5, -2e-3]}, z=<object at 0x7f3a>)"),
}

PREFIXES = ("(EngineCore pid=1) ", "(Worker_TP1 pid=22) ", "INFO 03-07 08:18:10 [kv_cache_utils.py:1314] ",
            "(EngineCore_DP0 pid=7) INFO 03-07 08:18:10 [core.py:3] ", "2026-03-07T08:18:10.123456789Z ",
            "2026-03-07T08:18:10.1Z stdout F INFO 03-07 08:18:10 [core.py:3] ", "vllm-1  | ", "[rank0]: ",
            "\x1b[36m(EngineCore pid=1)\x1b[0m ", "2026-03-07 08:18:10,123 DEBUG 03-07 08:18:10 [a.py:1] ")
OTHER_LINE = "(Worker_TP9 pid=99) INFO 03-07 08:18:11 [gpu_worker.py:1] Available KV cache memory: 20.79 GiB"


@st.composite
def noisy(draw, text: str) -> str:
    """The text as a log and a mail program leave it: wrapped anywhere, with prefixes, quotes, other lines between."""
    width = draw(st.sampled_from([40, 77, 80, 200, 10**9]))
    lines = [text[at:at + width] for at in range(0, len(text), width)]
    prefix = draw(st.sampled_from(["", *PREFIXES]))
    everywhere = draw(st.booleans())
    lines = [prefix * (everywhere or not index) + line for index, line in enumerate(lines)]
    if prefix and everywhere and "pid=" in prefix and draw(st.booleans()):
        lines.insert(draw(st.integers(0, len(lines))), OTHER_LINE)
    if draw(st.booleans()):
        lines[0], lines[-1] = "`" + lines[0], lines[-1] + "`"
    if draw(st.booleans()):
        lines = ["some words before", "", *lines, "and words, (after) = it"]
    mark = draw(st.sampled_from(["", "> ", ">> ", "> > ", "    "]))
    return draw(st.sampled_from(["\n", "\r\n", " \n"])).join(mark + line for line in lines)
