"""vLLM's own objects as ours, by field names: stand-ins of its classes as they were from 0.29 to 0.33."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import SimpleNamespace

import pytest
from hypothesis import given

import kvlayout as kv
from kvlayout.capture import as_config
from tests.capture_texts import any_configs
from tests.strategies import configs


class KVQuantMode(IntEnum):
    NONE = 0
    FP8_PER_TENSOR = 1


class MambaAttentionBackendEnum(Enum):
    GDN_ATTN = "some.module.Backend"


class Layout(Enum):
    BLHNC = (1, 0, 2, 3, 4)


@dataclass
class FullAttentionSpec:
    block_size: int = 16
    num_kv_heads: int = 2
    head_size: int = 64
    dtype: str = "torch.bfloat16"  # as str() shows a torch.dtype
    head_size_v: int = 64
    kv_quant_mode: KVQuantMode = KVQuantMode.FP8_PER_TENSOR
    a_field_of_tomorrow: int = 5


@dataclass
class MambaSpec:
    block_size: int = 16
    shapes: tuple = ((2, 3),)
    dtypes: tuple = ("torch.float32",)
    mamba_type: MambaAttentionBackendEnum = MambaAttentionBackendEnum.GDN_ATTN


@dataclass
class UniformTypeKVCacheSpecs:
    block_size: int
    kv_cache_specs: dict


@dataclass
class KVCacheTensor:
    size: int
    layers: list
    layer_stride: int
    block_stride: int
    offset: int = 0
    host_resident: bool = False


@dataclass
class KVCacheGroupSpec:
    layer_names: list
    kv_cache_spec: object
    is_eagle_group: bool = False


@dataclass
class KVCacheConfig:
    num_blocks: int
    kv_cache_tensors: list = field(default_factory=list)
    kv_cache_groups: list = field(default_factory=list)
    kv_cache_layout: object = None


def config(**changes):
    parts = {"num_blocks": 4, "kv_cache_tensors": [KVCacheTensor(65536, ["a", "b"], 32768, 8192)],
             "kv_cache_groups": [KVCacheGroupSpec(["a", "b"], FullAttentionSpec())]}
    return KVCacheConfig(**{**parts, **changes})


@given(config=any_configs() | configs())
def test_ours_stays_what_it_is(config):
    assert as_config(config) is config


@pytest.mark.parametrize("layout, name", [
    (None, None), ("BLHNC", "BLHNC"), (Layout.BLHNC, "BLHNC"), ("HND", "LBHNC")])
def test_theirs_becomes_ours(layout, name):
    found = as_config(config(kv_cache_layout=layout))
    spec = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16",
                                kv_quant_mode=kv.KVQuantMode.FP8_PER_TENSOR)
    assert found == kv.KVCacheConfig(4, [kv.KVCacheTensor(65536, ["a", "b"], 32768, 8192)],
                                     [kv.KVCacheGroupSpec(["a", "b"], spec)], name)


def test_several_specs_a_group_and_states():
    specs = UniformTypeKVCacheSpecs(16, {"a": FullAttentionSpec(), "b": FullAttentionSpec(head_size=32)})
    groups = [KVCacheGroupSpec(["a", "b"], specs), KVCacheGroupSpec(["c"], MambaSpec())]
    found = as_config(config(kv_cache_groups=groups))
    assert found.layer_specs["b"].head_size == 32
    assert found.layer_specs["c"].mamba_type == "gdn_attn"


def test_a_config_without_a_layout_field_has_none():
    bare = SimpleNamespace(**{name: getattr(config(), name) for name in ("num_blocks", "kv_cache_tensors",
                                                                         "kv_cache_groups")})
    assert as_config(bare).kv_cache_layout is None


@pytest.mark.parametrize("thing, place, rule", [
    (SimpleNamespace(num_blocks=4), "kv_cache_config.config", "has no kv_cache_tensors, kv_cache_groups"),
    (None, "kv_cache_config.config", "has no num_blocks"),
    (config(kv_cache_tensors=[SimpleNamespace(size=4, shared_by=["a"])]),
     "kv_cache_config.kv_cache_tensors[0].shared_by", "no strides"),
    (config(kv_cache_tensors=[SimpleNamespace(size=4, layers=["a"])]),
     "kv_cache_config.kv_cache_tensors[0].tensor", "has no layer_stride, block_stride"),
    (config(kv_cache_tensors=[KVCacheTensor(8, ["a"], 8, 8, 0, True)]),
     "kv_cache_config.kv_cache_tensors[0].host_resident", "a pool of its own"),
    (config(kv_cache_groups=[KVCacheGroupSpec(["a"], SimpleNamespace(block_size=16))]),
     "kv_cache_config.kv_cache_groups[0].kv_cache_spec", "is not a KV cache spec"),
    (config(kv_cache_layout="BNLH"), "kv_cache_config.kv_cache_layout", "is not a KV cache layout"),
    (config(num_blocks=-1), "kv_cache_config.num_blocks", "at least 0"),
])
def test_anything_else_is_refused_naming_the_place(thing, place, rule):
    with pytest.raises(kv.LayoutError) as error:
        as_config(thing)
    assert error.value.argument == place and rule in error.value.rule
