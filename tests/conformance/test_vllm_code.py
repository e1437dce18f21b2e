"""The vLLM code that the explorer shows runs on real vLLM, and finds the offsets that ours says."""



import pytest

from kvlayout import Selection, presets
from kvlayout.upstream.release import found as found_vllm
from kvlayout.versions import VLLM_VERSIONS
from kvlayout_widgets.state import State
from kvlayout_widgets.vllm_code import vllm_code

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("layout", [None, "BLNHC"])
@pytest.mark.parametrize("model", presets())
def test_the_code_runs_on_vllm(model, layout):
    version, _ = found_vllm()
    if version not in VLLM_VERSIONS:
        pytest.skip(f"vLLM {version} is none of {', '.join(VLLM_VERSIONS)}")
    state = State(Selection(model=model, layout=layout, num_blocks=40, vllm_version=version))
    found = {}
    exec(vllm_code(state.plan.address_map, state.coordinate, version), found)
    assert found["offset"] == state.coordinate.offset(state.plan.address_map)
    assert set(found["caches"]) == set(state.plan.address_map.layers)
