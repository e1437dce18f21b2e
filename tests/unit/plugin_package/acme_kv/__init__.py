"""A package of somebody else's: one of each kind that is right, and some that are not."""


class Flat:
    """A duck type; it knows nothing of kvlayout."""

    @classmethod
    def supported_kv_cache_layouts(cls):
        return ["BNHLC", "BLNHC"]

    @classmethod
    def get_supported_kernel_block_sizes(cls):
        return [16]


ROWS, SAME = "BNHLC", "LBNHC"
NOT_A_BACKEND, NOT_A_LAYOUT = 5, "rows"
TINY = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "torch_dtype": "bfloat16",
        "max_position_embeddings": 4096}
UNKNOWN = {"model_type": "acme-nothing"}
