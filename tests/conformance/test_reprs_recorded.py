"""What vLLM 0.32.0 and 0.33.0 printed is read as that config, also with a log's prefixes and wraps."""

import json
from pathlib import Path

import pytest

from kvlayout import LayoutError
from kvlayout.capture import load, parse, save
from kvlayout.capture.config_json import config_from_dict, config_to_dict

RECORDED = Path(__file__).parents[1] / "recorded"
CASES = [json.loads(line) for path in sorted(RECORDED.glob("reprs-*.jsonl"))
         for line in path.read_text().splitlines()]
IDS = [f"{case['vllm']}-{case['case']}-{case['layout']}" for case in CASES]


def test_there_are_cases():
    assert len(CASES) == 82


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_printed_config_is_read(case, tmp_path):
    config = config_from_dict(case["config"])
    assert parse(case["text"]) == config
    assert parse(f"(EngineCore pid=1) INFO 03-07 08:18:10 [core.py:131] `{case['text']}`") == config
    assert parse("> " + case["text"].replace(", ", ",\n> ")) == config
    save(config, tmp_path / "capture.json")
    assert load(tmp_path / "capture.json") == config
    assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config


def test_a_text_that_was_cut_off_is_one_error():
    text = CASES[0]["text"]
    for end in range(1, len(text) - 1, 97):
        with pytest.raises(LayoutError):
            parse(text[:end])
