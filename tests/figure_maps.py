"""Address maps of many kinds, made by hand, for the tests of the figures."""

from kvlayout.address import AddressMap
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec
from kvlayout.interior import Field, Interior
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.placement import build_kv_cache_tensor, get_kv_cache_config_from_groups
from kvlayout.spec import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

GIB = 1 << 30


def names(count: int, first: int = 0, step: int = 1, end: str = "self_attn.attn") -> tuple[str, ...]:
    return tuple(f"model.layers.{first + i * step}.{end}" for i in range(count))


def planned(groups, layout, num_blocks, interiors=None, kernel_block_sizes=None) -> AddressMap:
    config = get_kv_cache_config_from_groups(groups, 0, layout, num_gpu_blocks_override=num_blocks)
    return AddressMap(config, layout, kernel_block_sizes, interiors)


def dense(layout="BLNHC", num_blocks=64, layers=28) -> AddressMap:
    """Qwen3-0.6B: 28 layers, 8 heads, blocks of 16 states, 512 bytes a state."""
    spec = FullAttentionSpec(16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    return planned([KVCacheGroupSpec(names(layers), spec)], as_layout(layout), num_blocks)


def huge(layout="BLNHC") -> AddressMap:
    """140 GiB of the same pages; nothing is allocated."""
    return dense(layout, num_blocks=140 * GIB // (28 * 65536))


def small(layout="BLNHC") -> AddressMap:
    """1 MiB of the same pages: 4 layers of 4 blocks."""
    return dense(layout, num_blocks=4, layers=4)


def tiny(layout="BLNHC", head_size=2) -> AddressMap:
    """2 layers, 3 blocks, 2 heads, 2 states, 8 bytes a state; also for prototypes that no planner knows."""
    spec = FullAttentionSpec(2, num_kv_heads=2, head_size=head_size, dtype="bfloat16")
    layers = ("layers.0", "layers.1")
    layout = as_layout(layout) if layout in KVCacheLayout.__members__ else PhysicalLayout(layout)
    tensor = build_kv_cache_tensor(spec, 3, layers, layout=layout)
    return AddressMap(KVCacheConfig(3, [tensor], [KVCacheGroupSpec(layers, spec)]), layout)


def mla(layout="LBNHC") -> AddressMap:
    spec = MLAAttentionSpec(64, num_kv_heads=1, head_size=576, dtype="bfloat16")
    interior = Interior((Field("latent", 0, 512, 16), Field("rope", 1024, 64, 16)))
    layers = names(27)
    return planned([KVCacheGroupSpec(layers, spec)], as_layout(layout), 500, dict.fromkeys(layers, interior))


def padded(layout="BLHNC") -> AddressMap:
    """vllm#50276: pages of 37,376 bytes padded to 37,440."""
    spec = MLAAttentionSpec(64, num_kv_heads=1, head_size=584, dtype="uint8", alignment=576)
    return planned([KVCacheGroupSpec(names(4), spec)], as_layout(layout), 100)


def overlay(layout="BLNHC") -> AddressMap:
    """A full-attention group over the same bytes as five sliding-window groups of the same page size."""
    full = FullAttentionSpec(16, num_kv_heads=4, head_size=256, dtype="bfloat16")
    window = SlidingWindowSpec(16, num_kv_heads=4, head_size=256, dtype="bfloat16", sliding_window=512)
    groups = [KVCacheGroupSpec(names(4, 5, 6), full),
              *(KVCacheGroupSpec(names(4, first, 6), window) for first in range(3)),
              KVCacheGroupSpec(names(3, 3, 6), window)]
    return planned(groups, as_layout(layout), 200)


def hybrid(layout="BLNHC") -> AddressMap:
    """Mamba states beside attention: the state's page is padded to the attention page of 1 MiB."""
    attention = FullAttentionSpec(512, num_kv_heads=2, head_size=256, dtype="bfloat16")
    state = MambaSpec(8192, shapes=((3, 8192), (64, 128, 64)), dtypes=("bfloat16", "bfloat16"),
                      page_size_padded=attention.page_size_bytes * 2)
    attention = attention.copy_with_new_block_size(1024)
    groups = [KVCacheGroupSpec(names(6, 3, 4), attention)]
    groups += [KVCacheGroupSpec(names(6, first, 4, "mixer"), state) for first in range(3)]
    return planned(groups, as_layout(layout), 40)


def nvfp4(layout="LBHNC") -> AddressMap:
    """K slots and V slots apart, each fp4 data and fp8 block scales."""
    spec = FullAttentionSpec(16, num_kv_heads=4, head_size=128, dtype="uint8", num_head_slots=8,
                             state_content_bytes=72)
    fields = [Field(f"{kind}{part}", offset, size, bits, slots)
              for kind, slots in (("K", (0, 4)), ("V", (4, 8)))
              for part, offset, size, bits in (("", 0, 128, 4), (" scale", 64, 8, 8))]
    layers = names(36)
    return planned([KVCacheGroupSpec(layers, spec)], as_layout(layout), 300, dict.fromkeys(layers, Interior(fields)))


def split(layout="LBNHC") -> AddressMap:
    """Manager blocks of 64 states, cut into kernel blocks of 16."""
    spec = FullAttentionSpec(64, num_kv_heads=8, head_size=128, dtype="bfloat16")
    return planned([KVCacheGroupSpec(names(8), spec)], as_layout(layout), 16, kernel_block_sizes=[16])


def indexer(layout="BLNHC") -> AddressMap:
    """MLA layers of 656 bytes a state, and indexer layers whose 64 scales lie at the page's tail."""
    main = MLAAttentionSpec(64, num_kv_heads=1, head_size=656, dtype="uint8")
    index = MLAAttentionSpec(64, num_kv_heads=1, head_size=132, dtype="uint8", cache_role="indexer")
    attention, indexers = names(9), names(4, 1, 2, "self_attn.indexer.k_cache")
    specs = {**dict.fromkeys(attention, main), **dict.fromkeys(indexers, index)}
    interior = Interior((Field("K", 0, 128, 8, state_stride=128), Field("K scale", 8192, 1, 32, state_stride=4)),
                        scope="page")
    group = KVCacheGroupSpec(tuple(specs), UniformTypeKVCacheSpecs(64, specs))
    return planned([group], as_layout(layout), 100, dict.fromkeys(indexers, interior))


def transposed(layout="LBHNC") -> AddressMap:
    """In each (block, head) cell K is [head_size, block_size] and V [block_size, head_size], as on CPUs."""
    spec = FullAttentionSpec(32, num_kv_heads=4, head_size=64, dtype="bfloat16")
    interior = Interior((Field("K", 0, 64, 16, state_stride=2, element_stride=64),
                         Field("V", 4096, 64, 16, state_stride=128)), scope="cell")
    layers = names(12)
    return planned([KVCacheGroupSpec(layers, spec)], as_layout(layout), 80, dict.fromkeys(layers, interior))


KINDS = {"dense": dense, "huge": huge, "small": small, "tiny": tiny, "mla": mla, "padded": padded, "overlay": overlay,
         "hybrid": hybrid, "nvfp4": nvfp4, "split": split, "indexer": indexer, "transposed": transposed}
