"""Models against real vLLM: what its own layers reported for presets, ranks, dtypes, and a config of each model type.

Recorded by ``python -m kvlayout.facts.record_models tests/recorded/models-0.33.0.jsonl`` with vLLM 0.33.0.
"""

import json
from pathlib import Path

import pytest

from kvlayout import LayoutError
from kvlayout.facts.models import get_preset, model_from_config, presets
from kvlayout.facts.record_models import all_cases, expand
from kvlayout.spec_io import spec_to_dict

PATH = Path(__file__).parents[1] / "recorded" / "models-0.33.0.jsonl"
RECORDS = [json.loads(line) for line in PATH.read_text().splitlines()]


def label(record: dict) -> str:
    case = dict(record["input"])
    model = case.pop("model")
    name = model if isinstance(model, str) else model["model_type"]
    return f"{name} {' '.join(f'{key}={value}' for key, value in case.items())}"


def ours(case: dict) -> list:
    model = get_preset(case["model"]) if isinstance(case["model"], str) else model_from_config(case["model"])
    choices = {key: value for key, value in case.items() if key not in ("model", "aligned")}
    read = model.aligned_kv_cache_specs if case.get("aligned") else model.kv_cache_specs
    # A list, so that the order of the layers counts.
    return [(name, json.loads(json.dumps(spec_to_dict(spec)))) for name, spec in read(**choices).items()]


@pytest.mark.parametrize("record", RECORDS, ids=label)
def test_as_vllms_own_layers_report(record):
    if "error" in record:
        with pytest.raises(LayoutError):
            ours(record["input"])
    else:
        assert ours(record["input"]) == list(expand(record["output"]).items())


def test_every_case_is_recorded_and_almost_none_failed():
    recorded = [json.dumps(record["input"], sort_keys=True) for record in RECORDS]
    assert sorted(recorded) == sorted(json.dumps(case, sort_keys=True) for case in all_cases())
    assert {record["vllm"] for record in RECORDS} == {"0.33.0"}
    assert {label(record) for record in RECORDS if "error" in record} == {
        "deepseek-ai/DeepSeek-V3 tp_size=1 pp_size=1 pp_rank=0 kv_cache_dtype=nvfp4",
        "nvidia/Nemotron-H-8B-Base-8K tp_size=16 pp_size=1 pp_rank=0"}


def test_every_preset_that_vllm_serves_is_recorded():
    served = {record["input"]["model"] for record in RECORDS if isinstance(record["input"]["model"], str)}
    assert served == {name for name, model in presets().items() if model.kind != "diffusion"}
