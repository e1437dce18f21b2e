"""Lines of vLLM's log against a selection: each with one that it agrees with, and one that it can't be from."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.clinic.log_check import check_log
from tests.strategies import configs

SIZE = "GPU KV cache size: 2,440,192 tokens"
CONCURRENCY = "Maximum concurrency for 2,048 tokens per request: 368.57x"
MEMORY = "Available KV cache memory: 20.79 GiB"
BLOCK_SIZE = "Setting attention block size to 480 tokens to ensure that attention page size is >= mamba page size."
PADDING = "Padding mamba page size by 1.27% to ensure that mamba page size and attention page size are exactly equal."
OVERRIDE = "Overriding num_gpu_blocks=76268 with num_gpu_blocks_override=9533"
LAYOUT = "Using HND KV cache layout for FLASHINFER backend."
REGISTERED = ("Registering KV_Caches: use_mla: False, num_blocks: 111680, block_shape: torch.Size([16, 1, 128]), "
              "per_layer_kv_cache_shape: torch.Size([2, 111680, 16, 1, 128])")
STORAGE = ("setStorage: sizes [8, 64, 1, 256], strides [40960, 256, 256, 1], storage offset 0, and itemsize 2 "
           "requiring a storage size of 606208 are out of bounds for storage of size 327680")
ELIDED = "setStorage: sizes [..], strides [..] ... are out of bounds for storage of size 327680"


def plan(model="Qwen/Qwen3-0.6B", **choices):
    return kv.make_plan(kv.Selection(model=model, **choices))


def placed(*specs, num_blocks=4, layout="LBNHC"):
    """A config of one layer a spec, each a group of its own."""
    groups = [kv.KVCacheGroupSpec([f"layer.{index}"], spec) for index, spec in enumerate(specs)]
    return kv.get_kv_cache_config_from_groups(groups, 0, kv.KVCacheLayout[layout], num_gpu_blocks_override=num_blocks)


def attention(block_size=16, heads=1, head_size=128, padded=None):
    return kv.FullAttentionSpec(block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype="bfloat16",
                                page_size_padded=padded)


# One token of the attention layer is 512 bytes, so 480 tokens are 245,760: 1.27% more than the state.
STATE = kv.MambaSpec(block_size=480, shapes=((242_678,),), dtypes=("int8",), page_size_padded=245_760)
HYBRID = placed(attention(480), STATE)
DENSE = plan(num_blocks=64)
GQA = plan(num_blocks=111_680, tp_size=8, backend="FLASHINFER", layout="LBHNC")

AGREES = {
    SIZE: (plan(num_blocks=152_512), "2,440,192 tokens", "152,512 blocks × 16 tokens = 2,440,192."),
    CONCURRENCY: (plan(num_blocks=47_177), "368.57x", "47,177 blocks / 128 blocks a request = 368.57x."),
    MEMORY: (plan(num_blocks=12_165), "12,165 blocks, 20.79 GiB",
             "20.79 GiB / 1,835,008 bytes a block = room for 12,162 to 12,168 blocks, and there are 12,165."),
    BLOCK_SIZE: (HYBRID, "480 tokens", "480 tokens × 512 bytes = 245,760, at least the state's 242,678."),
    PADDING: (HYBRID, "1.27%", "(245,760 / 242,678 − 1) × 100 = 1.27."),
    OVERRIDE: (plan(num_blocks=9533), "9,533 blocks", "num_gpu_blocks_override = 9,533 blocks"),
    LAYOUT: (GQA, "LBHNC", "HND (LBHNC) is the layout here."),
    REGISTERED: (GQA, "use_mla False, 111,680 blocks", "is 8,192 bytes, which the shapes hold."),
    STORAGE: (placed(attention(128, padded=81_920)), "an allocation of 327,680 bytes",
              "The view needs (303,103 + 1) × 2 = 606,208 bytes, 278,528 more than there are; the storage is the "
              "whole allocation of 327,680 bytes."),
    ELIDED: (placed(attention(128, padded=81_920)), "an allocation of 327,680 bytes",
             "the storage is the whole allocation of 327,680 bytes."),
}
IMPOSSIBLE = {
    "GPU KV cache size: 2,440,193 tokens": (DENSE, "isn't a multiple of 16 tokens (remainder 1)"),
    CONCURRENCY: (plan(block_size=1024, num_blocks=64), "A request takes 2 blocks, and no whole number of blocks"),
    MEMORY: (plan(num_blocks=12_169), "room for 12,162 to 12,168 blocks, too few for 12,169"),
    BLOCK_SIZE: (placed(attention(544), kv.MambaSpec(block_size=544, shapes=((270_000,),), dtypes=("int8",),
                                                     page_size_padded=278_528)),
                 "480 tokens × 512 bytes = 245,760, less than the state's 270,000"),
    PADDING: (placed(attention(480), kv.MambaSpec(block_size=480, shapes=((245_760,),), dtypes=("int8",))),
              "1.27% more are 486.072 to 486.120 tokens of 512 bytes, no whole number"),
    OVERRIDE: (plan(available_memory=20 * 2**30), "11,702 blocks, not the 76,268 that are overridden"),
    LAYOUT: (plan(backend="FLASH_ATTN"), "No layer here uses FLASHINFER, but FLASH_ATTN."),
    REGISTERED: (DENSE, "(2, 111680, 16, 1, 128) holds 457,441,280 elements / 111,680 blocks × 2 bytes = 8,192 bytes "
                 "a block, and a page has 65,536"),
    STORAGE: (DENSE, "the storage has 327,680 bytes"),
    STORAGE.replace("606208", "606210"): (DENSE, "= 606,208 bytes, not 606,210"),
    ELIDED.replace("327680", "327681"): (DENSE, "no whole number of blocks of 1,835,008 bytes"),
}
del IMPOSSIBLE[STORAGE]  # 5 pages of one layer: a cache of a storage a layer has such


@pytest.mark.parametrize("line", AGREES)
def test_a_line_that_agrees(line):
    subject, ours, why = AGREES[line]
    (fact,) = check_log(f"> (Worker_TP0 pid=7) INFO 03-07 08:18:10 [a.py:1] {line}", subject)
    assert (fact.verdict, fact.ours) == ("agrees", ours), fact
    assert why in fact.why and fact.number == 1 and fact.is_right
    assert fact.line == line or fact.line == f"{line[:157]}..."


@pytest.mark.parametrize("line", IMPOSSIBLE)
def test_a_line_that_cannot_be(line):
    subject, why = IMPOSSIBLE[line]
    (fact,) = check_log(line, subject)
    assert fact.verdict == "can't be", fact
    assert why in fact.why and not fact.is_right


@pytest.mark.parametrize("line", AGREES)
def test_a_plan_its_config_and_its_map_say_the_same(line):
    subject = AGREES[line][0]
    if isinstance(subject, kv.Plan):
        for other in (subject.config, subject.address_map):
            assert [fact.verdict for fact in check_log(line, other)] == ["agrees"], check_log(line, other)
    else:
        layout = kv.KVCacheLayout.LBNHC
        assert [fact.verdict for fact in check_log(line, kv.AddressMap(subject, layout))] == ["agrees"]


@pytest.mark.parametrize(("line", "subject", "why"), [
    (SIZE, DENSE, "2,440,192 / 16 tokens a block = 152,512 blocks; ours has 64."),
    (CONCURRENCY, DENSE, "64 blocks / 128 blocks a request = 0.50x; the line means 47,177 blocks."),
    (MEMORY, DENSE, "more than the 64 here: all ranks take the smallest rank's count, or an override."),
    (OVERRIDE, DENSE, "ours has 64."),
    (LAYOUT, plan(backend="FLASHINFER", layout="BLHNC"), "FlashInfer calls BLHNC so too"),
    (LAYOUT, plan(backend="FLASHINFER", layout="LBNHC"), "HND (LBHNC) could be, but here it is LBNHC."),
    (REGISTERED, plan(num_blocks=64, tp_size=8), "the line has 111,680 blocks, ours 64."),
    ("# GPU blocks: 27,000, # CPU blocks: 512", DENSE, "The line says 27,000 blocks; ours has 64."),
    ("GPU KV cache size: 4,096 tokens", DENSE, "4 times ours: a pool of 256 blocks would give it, or 4 "
     "context-parallel ranks of 1,024 tokens each."),
    ("GPU KV cache size: 4,672 tokens", plan(available_memory=128 << 20), "4 times ours: 4 context-parallel ranks of "
     "1,168 tokens each would give it; on one rank, 292 blocks × 1,835,008 bytes = 535,822,336 bytes, more than the "
     "selection's 134,217,728."),
    (ELIDED, DENSE, "(5 pages of one layer, 65,536 bytes each)"),
])
def test_a_line_that_differs(line, subject, why):
    (fact,) = check_log(line, subject)
    assert fact.verdict == "differs", fact
    assert why in fact.why


def test_lines_are_checked_against_each_other():
    size, memory = check_log(f"{SIZE}\n{MEMORY}", DENSE)
    assert size.verdict == "can't be"
    assert "152,512 blocks × 1,835,008 bytes = 260.64 GiB, more than the 20.79 GiB" in size.why
    assert memory.verdict == "differs"
    facts = check_log(f"{MEMORY}\nOverriding num_gpu_blocks=12165 with num_gpu_blocks_override=64", DENSE)
    assert [fact.verdict for fact in facts] == ["agrees", "agrees"]


def test_tokens_follow_the_longest_request_of_the_same_text():
    # 1,000 tokens take 63 blocks of 16, so the pool of 640 blocks is 10,158 tokens and not 10,240.
    text = "GPU KV cache size: {} tokens\nMaximum concurrency for 1,000 tokens per request: 10.16x"
    facts = check_log(text.format("10,158"), plan(num_blocks=640))
    assert [fact.verdict for fact in facts] == ["agrees", "agrees"]
    assert "int(640 blocks / 63 blocks a request × 1,000 tokens) = 10,158" in facts[0].why
    assert check_log(text.format("10,160"), plan(num_blocks=640))[0].verdict == "differs"
    assert check_log(text.format("10,159"), plan(num_blocks=640))[0].verdict == "can't be"


def test_without_the_longest_request_a_broken_block_can_be_explained():
    (fact,) = check_log("GPU KV cache size: 10,158 tokens", plan(num_blocks=640).config)
    assert fact.verdict == "can't tell" and "max_model_len such as" in fact.why


def test_a_hybrid_with_states():
    hybrid = plan("Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=1000)
    text = ("Setting attention block size to 544 tokens\nPadding mamba page size by 1.49%\n"
            "Maximum concurrency for 262,144 tokens per request: 2.05x\nGPU KV cache size: 537,180 tokens")
    facts = check_log(text, hybrid)
    # 482 blocks of attention, and two for each of three groups of states.
    assert "1,000 blocks / 488 blocks a request = 2.05x." in facts[2].why
    assert [fact.verdict for fact in facts] == ["agrees"] * 4, facts


def test_a_hybrid_with_windows_depends_on_what_is_not_known():
    hybrid = plan("google/gemma-3-27b-it", num_blocks=5000)
    good, bad = (check_log(f"Maximum concurrency for 131,072 tokens per request: {times}x", hybrid)[0]
                 for times in ("0.57", "0.62"))
    assert (good.verdict, bad.verdict) == ("agrees", "differs")
    assert "max_num_batched_tokens" in good.why


def test_wrapped_lines_and_quotes():
    wrapped = "\n".join(f"> {part}" for part in (SIZE[:17], SIZE[17:30], SIZE[30:]))
    (fact,) = check_log(wrapped, plan(num_blocks=152_512))
    assert fact.verdict == "agrees" and fact.number == 1


def test_a_text_without_facts_has_none():
    assert check_log("nothing of the kind\n" * 3, DENSE) == []
    assert check_log("", DENSE) == []


@pytest.mark.parametrize(("text", "subject"), [(None, DENSE), (b"x", DENSE), ("x", None), ("x", {"a": 1}), (3, 4)])
def test_bad_arguments(text, subject):
    with pytest.raises(kv.LayoutError):
        check_log(text, subject)


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "0", f"{'9' * 400}.5", "1.5", "18,446,744,073,709,551,616"])
@pytest.mark.parametrize("line", [*AGREES, "# GPU blocks: 27000", "3.5 GiB KV cache is needed, which is larger than "
                                  "the available KV cache memory (1.25 GiB)."])
def test_hostile_numbers(line, number):
    text = line
    for known in ("2,440,192", "2,048", "368.57", "20.79", "480", "1.27", "76268", "9533", "111680", "327680",
                  "27000", "3.5"):
        text = text.replace(known, number)
    for subject in (DENSE, DENSE.config, HYBRID, placed(attention(), num_blocks=0)):
        for fact in check_log(text, subject):
            assert fact.verdict in ("agrees", "differs", "can't be", "can't tell")
            assert len(fact.why) < 700 and len(fact.said) < 400


@given(config=configs(), blocks=st.integers(0, 10**6), times=st.decimals(0, 10**6, places=2))
def test_any_config_has_an_answer_to_any_line(config, blocks, times):
    text = "\n".join([f"GPU KV cache size: {blocks:,} tokens",
                      f"Maximum concurrency for {blocks:,} tokens per request: {times}x",
                      f"Available KV cache memory: {times} GiB", BLOCK_SIZE, PADDING, OVERRIDE, LAYOUT,
                      REGISTERED, STORAGE, ELIDED])
    facts = check_log(text, config)
    assert len(facts) == 10
    assert all(fact.why.endswith(".") for fact in facts)


@given(blocks=st.integers(1, 10**6), longest=st.integers(1, 10**6), block_size=st.sampled_from([1, 16, 48, 128]))
@example(blocks=59, longest=76091, block_size=1)  # printed as 58: the quotient is a float
@example(blocks=1, longest=49, block_size=1)  # printed as 0
def test_what_vllm_prints_of_a_config_agrees(blocks, longest, block_size):
    each = -(-longest // block_size)
    text = (f"GPU KV cache size: {int(blocks / each * longest):,} tokens\n"
            f"Maximum concurrency for {longest:,} tokens per request: {blocks / each:.2f}x\n")
    config = placed(attention(block_size), num_blocks=blocks)
    text += f"Available KV cache memory: {config.size_bytes / 2**30:.2f} GiB"
    assert [fact.verdict for fact in check_log(text, config)] == ["agrees"] * 3
