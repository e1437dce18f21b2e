"""Configs as JSON files: every spec class comes back as it was; whatever else is refused, naming the place."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.capture import config_from_dict, config_to_dict, load, save
from kvlayout.capture.files import write_json
from tests.capture_texts import LAYER_CLASSES, any_configs, layer_specs
from tests.strategies import configs

SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", tokens_per_state="1/2",
                            block_stride_alignment=kv.MultipleOf(4))
STATES = kv.MambaSpec(16, ((2, 3),), ("float32",))
GROUPS = [kv.KVCacheGroupSpec(["a", "b"], SPEC), kv.KVCacheGroupSpec(["c"], STATES)]
CONFIG = kv.get_kv_cache_config_from_groups(GROUPS, 1 << 20, "BLHNC")
TEXT = json.dumps({"kvlayout": 1, "kv_cache_config": config_to_dict(CONFIG)})


def through_json(config):
    return config_from_dict(json.loads(json.dumps(config_to_dict(config), allow_nan=False)))


@given(config=st.one_of(any_configs(), configs()))
def test_json_brings_every_config_back(config):
    found = through_json(config)
    assert found == config
    assert config_to_dict(found) == config_to_dict(config)  # is_draft doesn't count in equality


@pytest.mark.parametrize("kind", LAYER_CLASSES)
@given(data=st.data())
def test_json_brings_every_spec_class_back(kind, data):
    spec = data.draw(layer_specs(kind))
    config = kv.KVCacheConfig(1, (), [kv.KVCacheGroupSpec(["a"], spec)])
    assert type(through_json(config).kv_cache_groups[0].kv_cache_spec).__name__ == kind
    assert through_json(config) == config


def test_a_file_brings_it_back_and_a_rank_dump_too(tmp_path):
    path = tmp_path / "config.json"
    save(CONFIG, path)
    assert load(path) == load(str(path)) == CONFIG
    write_json({**json.loads(path.read_text()), "rank": 3, "layers": []}, path)
    assert load(path) == CONFIG


def test_saving_twice_leaves_the_new_content_and_no_other_file(tmp_path):
    for config in (CONFIG, kv.KVCacheConfig(1, (), ())):
        save(config, tmp_path / "config.json")
    assert load(tmp_path / "config.json").num_blocks == 1
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_write_that_fails_midway_keeps_the_old_file(tmp_path, monkeypatch):
    save(CONFIG, tmp_path / "config.json")

    def full(descriptor):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(kv.LayoutError, match=r"path='.*config.json': can't be written: No space left"):
        save(kv.KVCacheConfig(1, (), ()), tmp_path / "config.json")
    assert os.listdir(tmp_path) == ["config.json"] and load(tmp_path / "config.json") == CONFIG


@pytest.mark.parametrize("cut", range(0, len(TEXT), 7))
def test_a_cut_file_is_one_error_that_names_it(tmp_path, cut):
    path = tmp_path / "cut.json"
    path.write_text(TEXT[:cut])
    with pytest.raises(kv.LayoutError, match="is not JSON") as error:
        load(path)
    assert error.value.argument == str(path)


def damaged(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


BAD = {  # the file's text, and what the error's argument ends with
    "NaN": (damaged('"num_blocks": 32', '"num_blocks": NaN'), ".json"),
    "nesting without end": ("[" * 100_000, ".json"),
    "bytes that are no text": (b"\xff\xfe{}", ".json"),
    "a list": ("[]", "keys"),
    "another object": ('{"a": 1}', "keys"),
    "another format": (damaged('"kvlayout": 1', '"kvlayout": 2'), "kvlayout"),
    "config as a list": ('{"kvlayout": 1, "kv_cache_config": []}', "kv_cache_config"),
    "unknown key": (damaged('"num_blocks"', '"blocks"'), "blocks"),
    "unknown key of a tensor": (damaged('"offset"', '"start"'), "kv_cache_tensors[0].start"),
    "missing key of a tensor": (damaged('"size": ', '"offset": '), "kv_cache_tensors[0].size"),
    "text for a number": (damaged('"head_size": 64', '"head_size": "64"'), "kv_cache_spec.head_size"),
    "truth for a number": (damaged('"num_kv_heads": 2', '"num_kv_heads": true'), "kv_cache_spec.num_kv_heads"),
    "a fraction for a number": (damaged('"block_size": 16', '"block_size": 16.0'), "kv_cache_spec.block_size"),
    "a number for a shape": (damaged("[[2, 3]]", "6"), "kv_cache_groups[1].kv_cache_spec.shapes"),
    "a number for a dtype": (damaged('"bfloat16"', "16"), "kv_cache_spec.dtype"),
    "unknown spec": (damaged('"MambaSpec"', '"MambuSpec"'), "kv_cache_groups[1].kv_cache_spec.type"),
    "a list for a spec's type": (damaged('"MambaSpec"', "[]"), "kv_cache_groups[1].kv_cache_spec.type"),
    "unknown field of a spec": (damaged('"num_kv_heads"', '"kv_heads"'), "kv_cache_groups[0].kv_cache_spec.kv_heads"),
    "unknown layout": (damaged('"BLHNC"', '"BNLXC"'), "kv_cache_layout"),
    "a name for a list": (damaged('["c"]', '"c"'), "layers"),
    "a number for a name": (damaged('["c"]', "[3]"), "layers[0]"),
    "negative blocks": (damaged('"num_blocks": ', '"num_blocks": -'), "num_blocks"),
    "a strange multiple": (damaged('{"multiple_of": 4}', '{"multiple_of": "4"}'), "MultipleOf.base"),
    "another alignment": (damaged('{"multiple_of": 4}', '{"multiples": 4}'), "kv_cache_spec.block_stride_alignment"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_naming_the_place(tmp_path, case):
    text, place = BAD[case]
    path = tmp_path / "bad.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(kv.LayoutError) as error:
        load(path)
    assert error.value.argument.endswith(place) and str(path) in str(error.value), str(error.value)


def test_no_file_and_no_folder_are_errors(tmp_path):
    with pytest.raises(kv.LayoutError, match="can't be read: No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(kv.LayoutError, match="can't be written: No such file"):
        save(CONFIG, tmp_path / "none" / "config.json")
