"""A model given by its layers' specs."""

import kvlayout as kv

MODEL = kv.model_from_specs("specs", {
    "a": kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=16, dtype="bfloat16")})
