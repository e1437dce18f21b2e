"""Which specs merge into one, and which are of one uniform type."""

import pytest

from kvlayout.errors import LayoutError
from kvlayout.merging import UnmergeableError, can_merge, is_uniform_type, merge_specs, uniform_type_specs
from kvlayout.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

HEADS = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
LATENT = {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"}


def full(**changes):
    return FullAttentionSpec(**HEADS | changes)


def mla(**changes):
    return MLAAttentionSpec(**LATENT | changes)


def mamba(**changes):
    return MambaSpec(**{"block_size": 16, "shapes": ((4, 8),), "dtypes": ("float32",)} | changes)


def test_full_attention_with_and_without_a_window_is_one_spec():
    assert merge_specs([full(), full(sliding_window=128), full()]) == full(sliding_window=128)
    assert merge_specs([full(), full(attention_chunk_size=512)]) == full(attention_chunk_size=512)
    assert merge_specs([full(), full(non_causal=True)]) == full(non_causal=True)


def test_several_windows_beside_full_attention_are_an_error_and_not_merely_unmergeable():
    with pytest.raises(LayoutError, match=r"sliding_window=\[128, 256\]: must be one value") as raised:
        can_merge([full(sliding_window=256), full(sliding_window=128), full(num_kv_heads=4)])
    assert not isinstance(raised.value, UnmergeableError)


@pytest.mark.parametrize(("specs", "named"), [
    ([full(), full(num_kv_heads=4)], r"num_kv_heads=\[8, 4\]: must be equal"),
    ([full(), full(dcp_sharded=False)], r"dcp_sharded=\[True, False\]: must be equal"),
    ([full(), full(page_size_padded=2**17)], "page_size_padded"),
    ([full(sliding_window=128), full(attention_chunk_size=512)], "mix sliding windows with attention chunks"),
    ([full(), mla()], "mix MLA with attention that keeps keys and values"),
    ([full(), mamba()], "must all be FullAttentionSpec to merge"),
    ([mla(), full()], "must all be MLAAttentionSpec to merge"),
    ([mla(), mla(cache_role="indexer")], "cache_role"),
    ([mla(head_size_v=64)], "head_size_v=64: must be 0"),
    ([RSWASpec(**HEADS, rswa_window=64), RSWASpec(**HEADS, rswa_window=32)], r"rswa_window=\[64, 32\]"),
    ([RSWASpec(**HEADS, rswa_window=64), full()], "must all be RSWASpec"),
    ([SinkFullAttentionSpec(**HEADS, sink_len=4, tokens_per_state=2)], "tokens_per_state=2: must be 1"),
    ([SlidingWindowSpec(**HEADS, sliding_window=8), SlidingWindowSpec(**HEADS, sliding_window=9)],
     "must all equal the first SlidingWindowSpec"),
    ([mamba(), mamba(tp_replicated=True)], "must all equal the first MambaSpec"),
])
def test_specs_that_differ_too_much_dont_merge_and_the_error_says_in_what(specs, named):
    with pytest.raises(UnmergeableError, match=named):
        merge_specs(specs)
    assert not can_merge(specs)


def test_the_first_spec_decides_the_class():
    sink, rswa = SinkFullAttentionSpec(**HEADS, sink_len=4), RSWASpec(**HEADS, rswa_window=64)
    assert merge_specs([full(), sink, rswa]) == full()
    assert merge_specs([sink, full(), rswa]) == sink
    assert merge_specs([rswa, rswa]) == rswa
    assert type(merge_specs([mla(), HiddenStateCacheSpec(**LATENT)])) is MLAAttentionSpec
    assert type(merge_specs([HiddenStateCacheSpec(**LATENT), mla()])) is HiddenStateCacheSpec


def test_merged_mla_keeps_its_page_but_forgets_the_alignment_that_made_it():
    aligned = mla(alignment=512, block_size=1)
    merged = merge_specs([aligned, aligned])
    assert merged.alignment is None
    assert merged.page_size_bytes == aligned.page_size_bytes == 1536


def test_drafts_that_decode_several_tokens_merge_with_others_from_0_30_on():
    specs = [mla(), mla(non_causal_multi_token_decode=True)]
    assert merge_specs(specs, vllm_version="0.30.0").non_causal_multi_token_decode
    assert not can_merge(specs, vllm_version="0.29.0")


def test_sliding_windows_over_latents_merge_by_window_alone():
    first = SlidingWindowMLASpec(**LATENT, sliding_window=128, kv_quant_mode="FP8_PER_TENSOR")
    merged = merge_specs([first, SlidingWindowMLASpec(**LATENT | {"head_size": 512}, sliding_window=128)])
    assert (merged.head_size, merged.kv_quant_mode.name) == (576, "NONE")
    assert not can_merge([first, SlidingWindowMLASpec(**LATENT, sliding_window=128, bounded_replay=True)])


def test_merging_nothing_is_an_error():
    with pytest.raises(LayoutError, match="at least one spec"):
        merge_specs([])


@pytest.mark.parametrize(("specs", "expected"), [
    ([full(), full(num_kv_heads=4), mla(block_size=16), RSWASpec(**HEADS, rswa_window=64)], True),
    ([full(), full(block_size=32)], False),
    ([full(), full(dcp_sharded=False)], False),
    ([full(), SlidingWindowSpec(**HEADS, sliding_window=128)], False),
    ([SlidingWindowSpec(**HEADS, sliding_window=128),
      SlidingWindowSpec(**HEADS | {"num_kv_heads": 2}, sliding_window=128)], True),
    ([SlidingWindowSpec(**HEADS, sliding_window=128), SlidingWindowSpec(**HEADS, sliding_window=64)], False),
    ([ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=512),
      ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=256)], False),
    ([CircularBufferSpec(**HEADS), CircularBufferSpec(**HEADS | {"head_size": 64})], True),
    ([CrossAttentionSpec(**HEADS), CrossAttentionSpec(**HEADS | {"head_size": 64})], True),
    ([mamba(), mamba(shapes=((8, 4),))], True),
    ([mamba(), mamba(shapes=((8, 8),))], False),
    ([mamba(), mamba(num_speculative_blocks=1)], False),
])
def test_uniform_type(specs, expected):
    assert is_uniform_type(specs) is expected
    named = {f"layer {index}": spec for index, spec in enumerate(specs)}
    uniform = uniform_type_specs(named)
    assert (uniform.kv_cache_specs if uniform else None) == (named if expected else None)


def test_uniform_type_asks_the_first_layer():
    plain = SlidingWindowSpec(**LATENT, sliding_window=128)
    latent = SlidingWindowMLASpec(**LATENT, sliding_window=128)
    assert is_uniform_type([plain, latent])
    assert not is_uniform_type([latent, plain])


def test_an_encoder_keeps_no_cache():
    with pytest.raises(LayoutError, match="EncoderOnlyAttentionSpec.*no type of cache"):
        is_uniform_type([EncoderOnlyAttentionSpec(**HEADS), full()])
