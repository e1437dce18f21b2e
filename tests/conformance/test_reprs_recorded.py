"""Pasted text against real vLLM: what its own configs print is read as the very same configs.

Recorded by ``python -m kvlayout.facts.record_reprs tests/recorded/reprs-VERSION.jsonl`` with the CPU build of vLLM
0.32.0 and with vLLM 0.33.0; ``config`` is the same object read field by field.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvlayout.capture import config_from_dict, config_to_dict, parse, read
from kvlayout.capture.objects import as_config
from kvlayout.facts.record_reprs import CASES, MODELS, groups_of
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec_io import SPEC_TYPES
from kvlayout.upstream.release import found as found_vllm
from kvlayout.versions import VLLM_VERSIONS

FOLDER = Path(__file__).parents[1] / "recorded"
VERSIONS = ("0.32.0", "0.33.0")
RECORDS = [json.loads(line) for version in VERSIONS
           for line in (FOLDER / f"reprs-{version}.jsonl").read_text().splitlines()]


def label(record: dict) -> str:
    return f"{record['vllm']} {record['case']} {record['config']['kv_cache_layout']}"


@pytest.mark.parametrize("record", RECORDS, ids=label)
def test_the_text_says_what_the_object_says(record):
    pasted = read(record["text"])
    assert config_to_dict(pasted.config) == record["config"]
    assert config_from_dict(record["config"]) == pasted.config
    assert pasted.problems == ()
    if record["config"]["kv_cache_layout"] is None:
        assert record["layout"] in [layout.name for layout in pasted.layouts]
    else:
        assert not any("strides fit" in note for note in pasted.notes)


@pytest.mark.parametrize("record", RECORDS, ids=label)
def test_vllm_placed_them_as_we_would(record):
    ours = get_kv_cache_config_from_groups(groups_of(record["case"]), 1 << 26, record["layout"],
                                           vllm_version=record["vllm"])
    assert parse(record["text"]).kv_cache_tensors == ours.kv_cache_tensors


def test_every_case_and_spec_class_is_recorded():
    assert {(record["vllm"], record["case"]) for record in RECORDS} == {
        (version, case) for version in VERSIONS for case in (*CASES, *MODELS)}
    text = "".join(record["text"] for record in RECORDS)
    unseen = {name for name in SPEC_TYPES if f"{name}(" not in text}
    assert unseen == {"RSWASpec", "HiddenStateCacheSpec", "CircularBufferSpec", "EncoderOnlyAttentionSpec"}


@pytest.mark.vllm
def test_this_vllm_prints_what_we_read(tmp_path):
    version, _ = found_vllm()
    if version not in VLLM_VERSIONS:
        pytest.skip(f"vLLM {version} is none of {', '.join(VLLM_VERSIONS)}")
    path = tmp_path / "reprs.jsonl"
    subprocess.run([sys.executable, "-m", "kvlayout.facts.record_reprs", str(path)], check=True, timeout=300)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) >= 2 * len(CASES)
    for record in records:
        assert config_to_dict(parse(record["text"])) == record["config"], label(record)


@pytest.mark.vllm
def test_real_objects_become_ours():
    from vllm.v1 import kv_cache_interface as interface

    tensor = interface.KVCacheTensor(size=800, layers=["a"], layer_stride=80, block_stride=8, offset=16)
    found = as_config(interface.KVCacheConfig(num_blocks=10, kv_cache_tensors=[tensor], kv_cache_groups=[]))
    assert found == parse(repr(found)) and found.kv_cache_tensors[0].offset == 16
