"""Log lines with facts: each is a record with its numbers, wrapped or not; strides say which layouts fit."""

import pytest
from hypothesis import given

import kvlayout as kv
from kvlayout.capture import fitting_layouts, read
from kvlayout.capture.fitting import place_alike
from tests.strategies import configs

LINES = {
    "(EngineCore pid=1) INFO 03-07 08:18:10 [kv_cache_utils.py:1314] GPU KV cache size: 2,440,192 tokens":
        ("kv_cache_size", {"device": "GPU", "tokens": 2_440_192}),
    "Maximum concurrency for 2,048 tokens per request: 368.57x":
        ("maximum_concurrency", {"tokens": 2048, "times": 368.57}),
    "2026-03-07T08:18:10.12Z stdout F (Worker_TP1 pid=2) INFO 03-07 08:18:10 [x.py:3] Available KV cache memory: "
    "20.79 GiB": ("available_kv_cache_memory", {"gib": 20.79}),
    "Setting attention block size to 480 tokens to ensure that attention page size is >= mamba page size.":
        ("attention_block_size", {"tokens": 480}),
    "Padding mamba page size by 1.27% to ensure that mamba page size and attention page size are exactly equal.":
        ("mamba_page_padding", {"percent": 1.27}),
    "> `Overriding num_gpu_blocks=76268 with num_gpu_blocks_override=9533`":
        ("num_gpu_blocks_override", {"num_gpu_blocks": 76268, "override": 9533}),
    "INFO 03-07 08:18:10 executor_base.py:112] # GPU blocks: 27,000, # CPU blocks: 512":
        ("num_gpu_blocks", {"num_gpu_blocks": 27000, "num_cpu_blocks": 512}),
    "Using HND KV cache layout for FLASHINFER backend.":
        ("kv_cache_layout", {"layout": "HND", "backend": "FLASHINFER"}),
    "Using BLHNC KV cache layout.": ("kv_cache_layout", {"layout": "BLHNC"}),
    "NixlConnector setting KV cache layout to LBHNC for better xfer performance.":
        ("connector_layout", {"connector": "NixlConnector", "layout": "LBHNC"}),
    "export VLLM_KV_CACHE_LAYOUT=NHD": ("requested_layout", {"layout": "NHD"}),
    "Registering KV_Caches: use_mla: False, num_blocks: 111680, block_shape: torch.Size([16, 1, 128]), "
    "per_layer_kv_cache_shape: torch.Size([2, 111680, 16, 1, 128])": ("registered_kv_caches", {
        "use_mla": False, "num_blocks": 111680, "block_shape": (16, 1, 128),
        "per_layer_kv_cache_shape": (2, 111680, 16, 1, 128)}),
    "Registering KV_Caches. use_mla: True, kv_buffer_device: cuda, use_host_buffer: False":
        ("registered_kv_caches", {"use_mla": True, "kv_buffer_device": "cuda"}),
    "RuntimeError: setStorage: sizes [4, 3], strides [3, 1], storage offset 5, and itemsize 2 requiring a storage "
    "size of 34 are out of bounds for storage of size 20": ("storage_bounds", {
        "sizes": (4, 3), "strides": (3, 1), "storage_offset": 5, "itemsize": 2, "required_bytes": 34,
        "storage_bytes": 20}),
    "ValueError: ... max seq len (8192), (3.5 GiB KV cache is needed, which is larger than the available KV cache "
    "memory (1.25 GiB).": ("kv_cache_memory_needed", {"needed_gib": 3.5, "available_gib": 1.25}),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_a_record(line):
    facts = read(f"before\n{line}\nafter").facts
    assert [(fact.kind, fact.values, fact.line) for fact in facts] == [(*LINES[line], 2)]


@pytest.mark.parametrize("width", [11, 23, 40])
@pytest.mark.parametrize("line", [line for line in LINES if "[" not in line.split("] ")[0] or "Size" in line])
def test_a_wrapped_line_is_the_same_record(line, width):
    wrapped = "\n".join(line[at:at + width] for at in range(0, len(line), width))
    assert [(fact.kind, fact.values) for fact in read(wrapped).facts] == [LINES[line]]


def test_all_lines_together_in_their_order():
    facts = read("\n".join(LINES)).facts
    assert [(fact.kind, fact.values, fact.line) for fact in facts] == [
        (*fact, line) for line, fact in enumerate(LINES.values(), 1)]


@given(config=configs())
def test_a_configs_own_layout_fits_its_strides(config):
    fits = fitting_layouts(config)
    assert config.kv_cache_layout in [layout.name for layout in fits]
    for layout in fits:  # whatever fits reaches every byte once
        assert all(overlap.is_legal for overlap in kv.AddressMap(config, layout).overlaps())
    if place_alike(config, fits):
        offsets = [kv.AddressMap(config, layout).runs(block=[0], state=[0]) for layout in fits]
        assert all(one == offsets[0] for one in offsets)


SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
EXPECTED = {"LBHNC": "LBHNC LBNHC", "LBNHC": "LBHNC LBNHC", "LHBNC": "LHBNC", "BLHNC": "BLHNC BLNHC",
            "BLNHC": "BLHNC BLNHC", "BHLNC": "BHLNC"}


def placed(layout, spec=SPEC, named=False):
    group = kv.KVCacheGroupSpec(["a", "b", "c"], spec)
    config = kv.get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=5)
    return kv.KVCacheConfig(5, config.kv_cache_tensors, config.kv_cache_groups, layout if named else None)


@pytest.mark.parametrize("layout", EXPECTED)
def test_strides_tell_all_but_the_order_inside_a_page(layout):
    pasted = read(repr(placed(layout)))
    assert " ".join(one.name for one in pasted.layouts) == EXPECTED[layout]
    note = next(note for note in pasted.notes if "no kv_cache_layout" in note)
    assert note.endswith("strides alone do not decide" if " " in EXPECTED[layout] else f"fit {layout} alone")
    assert pasted.config.kv_cache_layout is None


def test_one_head_slot_makes_them_the_same():
    spec = kv.MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype="bfloat16")
    pasted = read(repr(placed("LBNHC", spec)))
    assert [one.name for one in pasted.layouts] == ["LBHNC", "LBNHC", "LHBNC"]
    assert any("place every byte alike" in note for note in pasted.notes)


def test_a_log_line_decides_between_what_fits():
    pasted = read("Using HND KV cache layout for FLASHINFER backend.\n" + repr(placed("LBHNC")))
    assert [one.name for one in pasted.layouts] == ["LBHNC"]
    pasted = read("Using BLHNC KV cache layout.\n" + repr(placed("LBHNC")))
    assert len(pasted.layouts) == 2 and any("the strides do not fit" in note for note in pasted.notes)


def test_a_named_layout_that_the_strides_contradict_is_noted():
    assert read(repr(placed("LBHNC", named=True))).notes == ()
    wrong = repr(placed("LBHNC", named=True)).replace("'LBHNC'", "'BHLNC'")
    assert "kv_cache_layout=BHLNC, but its strides fit LBHNC, LBNHC" in read(wrong).notes[0]


def test_a_tensor_of_a_layer_without_a_group_is_noted():
    text = repr(placed("LBHNC")).replace("layer_names=('a', 'b', 'c')", "layer_names=('a', 'b')")
    assert "contradicts itself" in read(text).notes[0] and "'c'" in read(text).notes[0]
