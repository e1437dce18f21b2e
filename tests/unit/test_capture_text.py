"""Pasted text: what vLLM printed comes back whatever a log and a mail did to it; what is missing is said."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.capture import SharedTensor, config_to_dict, parse, read
from tests.capture_texts import PREFIXES, any_configs, noisy, vllm_repr
from tests.strategies import configs

RECORDED = Path(__file__).parents[1] / "recorded" / "reprs-0.33.0.jsonl"
REAL = {record["case"]: record for record in map(json.loads, RECORDED.read_text().splitlines())}
HYBRID = REAL["hybrid"]["text"]


@given(data=st.data(), config=st.one_of(any_configs(), configs()))
def test_a_printed_config_comes_back_through_all_noise(data, config):
    text = data.draw(st.sampled_from([vllm_repr, repr]))(config)
    pasted = read(data.draw(noisy(text)))
    assert pasted.problems == ()
    assert pasted.config == config
    assert config_to_dict(pasted.config) == config_to_dict(config)


@pytest.mark.parametrize("width", range(1, 60))
def test_wraps_fall_anywhere(width):
    lines = [HYBRID[at:at + width] for at in range(0, len(HYBRID), width)]
    for prefix in ("", "> ", PREFIXES[3]):
        assert config_to_dict(parse("\n".join(prefix + line for line in lines))) == REAL["hybrid"]["config"]


@pytest.mark.parametrize("case, step", [("hybrid", 1), ("mixed pages", 5), ("latent with an index", 7)])
def test_a_text_cut_anywhere_is_never_half_a_config(case, step):
    text = PREFIXES[3] + REAL[case]["text"]
    whole = read(text)
    for cut in range(0, len(text), step):
        pasted = read(text[:cut])
        assert pasted.config is None
        assert pasted.notes or "KVCacheConfig(" not in text[:cut]
        assert all(tensor in whole.tensors for tensor in pasted.tensors)
        assert all(group in whole.groups for group in pasted.groups)
        if cut % 5 == 0:
            with pytest.raises(kv.LayoutError):
                parse(text[:cut])


PIECES = [*"[](){}<>:,'\"1-=\n`\\é…", "KVCacheConfig(", "KVCacheTensor(", "MambaSpec(", "FullAttentionSpec(", "size=",
          "layers=", "block_size=", "...", "0x", "1e9", "a.b", "> ", "shared_by", "shapes=", "dtype=torch.",
          "Fraction(1, 0)", "9" * 50, "{'a': ", "kv_quant_mode="]


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=40))
@example(pieces=["MambaSpec("] * 500)
@example(pieces=["KVCacheConfig(", *["["] * 5000])
def test_nothing_that_is_pasted_raises_another_error(pieces):
    text = "".join(pieces)
    read(text)
    try:
        parse(text)
    except kv.LayoutError as error:
        assert error.argument and error.rule


@given(text=st.text(max_size=60), at=st.integers(len("KVCacheConfig("), len(HYBRID)))
def test_what_is_damaged_in_the_middle_is_read_or_noted(text, at):
    pasted = read(HYBRID[:at] + text + HYBRID[at:])
    assert pasted.config is not None or pasted.problems


def test_brackets_without_end_spoil_nothing_else():
    pasted = read("KVCacheTensor(" * 5000 + "\nINFO 03-07 08:18:10 [a.py:1] " + HYBRID)
    assert config_to_dict(pasted.config) == REAL["hybrid"]["config"]
    assert "brackets nest more than 60 deep" in pasted.notes[0]


@pytest.mark.parametrize("old, new, said", [
    ("'model.layers.1.self_attn.attn'", "...", "names between 'model.layers.0.self_attn.attn' and "
                                               "'model.layers.2.self_attn.attn', numbers 1 to 1, are missing"),
    ("'model.layers.1.self_attn.attn'", "…", "kv_cache_tensors[0].layers[1]"),
    ("'model.layers.1.self_attn.attn'", "... (1 more layer)", "kv_cache_tensors[0].layers[1]"),
    ("'model.layers.1.self_attn.attn'", "'model.layers.1.sel...'", "'model.layers.1.sel... ...': is elided"),
    ("head_size=64, dtype=torch.bfloat16", "...", "the text has no head_size, dtype"),
    ("size=67092480", "size=670...", "kv_cache_tensors[0].size='670 ...': is not whole"),
    ("dtype=torch.bfloat16", "dtype=torch.bfl...", "kv_cache_spec.dtype='torch.bfl ...': is not whole"),
    ("KVCacheTensor(size", "..., KVCacheTensor(size", "kv_cache_tensors[0]='...': is no KVCacheTensor that the text"),
    ("<KVQuantMode.NONE: 0>", "<...>", "kv_quant_mode='<...> ...': is not whole"),
])
def test_elisions_say_what_is_missing(old, new, said):
    assert old in HYBRID
    pasted = read(HYBRID.replace(old, new, 1))
    assert pasted.config is None
    assert any(said in note for note in pasted.notes), pasted.notes


def test_a_cut_says_where_and_keeps_what_was_whole():
    pasted = read("some line\n" + HYBRID[:HYBRID.index("layer_names=['model.layers.3") + 20])
    assert len(pasted.tensors) == 2 and len(pasted.groups) == 1
    assert pasted.notes[0].startswith("Line 2: text=") and "kv_cache_groups=[KVCacheGroupSpec(layer_names=" in \
        pasted.notes[0]
    assert "the text has no prefix_cache" not in pasted.notes[1] and "kv_cache_layout" in pasted.notes[1]


def test_an_unknown_spec_class_names_it_and_the_nearest():
    with pytest.raises(kv.LayoutError, match=r"kv_cache_groups\[1\].*WindowSpecV2.*SlidingWindowSpec") as error:
        parse(HYBRID.replace("=SlidingWindowSpec(", "=SlidingWindowSpecV2("))
    assert error.value.value == "SlidingWindowSpecV2"
    with pytest.raises(kv.LayoutError, match="'XSpec'.*MambaSpec"):
        parse("XSpec(block_size=16, shapes=((1, 2),), dtypes=(torch.int8,))")


def test_unknown_fields_are_kept_and_named():
    pasted = read(HYBRID.replace("host_resident=False", "host_resident=False, tier=<Tier.HBM: 1>, extra={'a': [1]}"))
    assert config_to_dict(pasted.config) == REAL["hybrid"]["config"]
    assert pasted.unknown_fields["KVCacheTensor.tier"] == ["Tier.HBM"]
    assert pasted.unknown_fields["KVCacheTensor.extra"] == [{"a": [1]}]
    assert pasted.unknown_fields["KVCacheTensor.host_resident"] == [False]
    assert any("KVCacheTensor.tier" in note for note in pasted.notes)


def test_an_unknown_quantisation_is_kept_aside_as_it_changes_no_size():
    pasted = read(HYBRID.replace("<KVQuantMode.NONE: 0>", "<KVQuantMode.FP2: 99>"))
    assert config_to_dict(pasted.config) == REAL["hybrid"]["config"]
    assert pasted.unknown_fields["FullAttentionSpec.kv_quant_mode"] == ["KVQuantMode.FP2"]


def test_a_tensor_in_the_hosts_pool_is_no_part_of_the_allocation():
    with pytest.raises(kv.LayoutError, match=r"kv_cache_tensors\[0\].host_resident=True"):
        parse(HYBRID.replace("host_resident=False", "host_resident=True", 1))


OLD_SPEC = ("FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, head_size_v=128, dtype=torch.bfloat16, "
            "kv_quant_mode=<KVQuantMode.NONE: 0>, page_size_padded=None, use_mla=False, sliding_window=None)")
OLD = (f"KVCacheConfig(num_blocks=100, kv_cache_tensors=[KVCacheTensor(size=6553600, shared_by=['a', 'b']), "
       f"KVCacheTensor(size=6553600, shared_by=['c'], offset=64, block_stride=131072)], "
       f"kv_cache_groups=[KVCacheGroupSpec(layer_names=['a', 'c'], kv_cache_spec={OLD_SPEC})])")


def test_before_029_there_are_no_strides_and_the_rest_is_read():
    pasted = read(OLD)
    assert pasted.config is None and pasted.tensors == ()
    assert pasted.shared_tensors == (SharedTensor(6553600, ("a", "b")), SharedTensor(6553600, ("c",), 64, 131072))
    assert pasted.groups[0].kv_cache_spec.page_size_bytes == 65536
    assert pasted.unknown_fields == {"FullAttentionSpec.use_mla": [False]}
    with pytest.raises(kv.LayoutError, match="shared_by.*no strides, so the layout can't be known"):
        parse(OLD)


def test_a_latent_before_029_has_no_v():
    pasted = read("MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, head_size_v=576, "
                  "dtype=torch.bfloat16, page_size_padded=None, cache_dtype_str=None)")
    assert pasted.specs[0].page_size_bytes == 64 * 576 * 2


def test_pieces_are_read_and_what_a_config_lacks_is_said():
    tensor = "KVCacheTensor(block_stride=8, layer_stride=80, layers=['a'], size=800, offset=16)"
    pasted = read(f"first {tensor} and {{'a': {OLD_SPEC}, 'b': {OLD_SPEC}}}")
    assert pasted.tensors == (kv.KVCacheTensor(800, ["a"], 80, 8, 16),)
    assert set(pasted.layer_specs) == {"a", "b"} and len(pasted.specs) == 2
    with pytest.raises(kv.LayoutError, match="1 KVCacheTensor.*num_blocks, kv_cache_tensors and kv_cache_groups"):
        parse(tensor)
    with pytest.raises(kv.LayoutError, match="none of its parts"):
        parse("nothing of this kind")
    with pytest.raises(kv.LayoutError, match="must be text"):
        parse(5)


def test_a_piece_without_its_fields_is_named():
    with pytest.raises(kv.LayoutError, match="KVCacheTensor=.*has no layers, block_stride"):
        parse("KVCacheTensor(size=1, layer_stride=2)")
    with pytest.raises(kv.LayoutError, match="FullAttentionSpec.head_size=None: is required"):
        parse("FullAttentionSpec(block_size=16, num_kv_heads=1, dtype=torch.int8)")
    with pytest.raises(kv.LayoutError, match="num_blocks='n': must be a whole number"):
        parse("KVCacheConfig(num_blocks=n, kv_cache_tensors=[], kv_cache_groups=[])")


def test_ranks_that_differ_are_all_kept():
    first, second = (HYBRID, HYBRID.replace("offset=0", "offset=1024", 1))
    text = "\n".join([f"(Worker_TP0 pid=1) {first}", f"(Worker_TP1 pid=2) {second}", f"(Worker_TP2 pid=3) {first}"])
    pasted = read(text)
    assert [config.kv_cache_tensors[0].offset for config in pasted.configs] == [0, 1024]
    assert any("2 different configs" in note for note in pasted.notes)


def test_lines_of_two_processes_interleave():
    lines = {pid: [HYBRID[at:at + 90] for at in range(0, len(HYBRID), 90)] for pid in (1, 2)}
    both = [f"(Worker_TP{pid} pid={pid}) {lines[pid][index]}" for index in range(len(lines[1])) for pid in (1, 2)]
    assert config_to_dict(parse("\n".join(both))) == REAL["hybrid"]["config"]


def test_another_message_within_a_cut_one_is_no_part_of_it():
    text = (f"INFO 03-07 08:18:10 [a.py:1] {HYBRID[:300]}\nINFO 03-07 08:18:11 [b.py:2] Graph capturing finished\n"
            f"INFO 03-07 08:18:12 [c.py:3] {HYBRID}")
    pasted = read(text)
    assert config_to_dict(pasted.config) == REAL["hybrid"]["config"]
    assert pasted.notes[0].startswith("Line 1: text=")


def test_html_and_typographic_quotes():
    text = HYBRID.replace("<", "&lt;").replace(">", "&gt;").replace("'", "\u2019")
    assert config_to_dict(parse(text)) == REAL["hybrid"]["config"]


@pytest.mark.parametrize("around", ["x" * 2_000_000, " " * 2_000_000 + "\n", "y (z) " * 300_000 + "\n",
                                    "(Worker pid=1) INFO 03-07 08:18:10 [a.py:1] served b(2)\n" * 20_000])
def test_a_config_amid_megabytes_is_found_at_once(around):
    config = parse(HYBRID)
    begun = time.process_time()
    assert read(f"{around} {HYBRID}\n{around}").configs == (config,)
    assert time.process_time() - begun < 3


def test_a_longer_text_than_is_read_is_refused_at_once():
    with pytest.raises(kv.LayoutError, match="is longer than the 100,000,000 that are read"):
        read("x" * 100_000_001)
