"""What the outputs under each heading of ``notebooks/4_prototype.ipynb`` must say, with or without vLLM."""

SAYS = {
    "An idea, in ten lines": (
        "loses: ['HeadFirst']", "BHLNC   HeadFirst choice 2 of 4", "LBHNC   HeadFirst choice 4 of 4; CPU_ATTN choice",
        "prototype-layout: vLLM 0.33.0 has no layout HBLNC", "26,000 × 8 × 16 × 512", "5,242,880, 655,360, 512, 1",
        "65,536 B (64 KiB), 0 of it padding", "8 runs of 8,192 B, 655,360 B apart"),
    "Which layout?": (
        "120 layouts", "LBHNC 80 and 80, LBNHC 80 and 1,280, LHBNC 640 and 320, BLHNC 1 and 80, BLNHC 1 and 1,280, "
        "BHLNC 1 and 1", "Best in both: BHLNC, BHLCN, BHNLC, BHNCL, BHCLN, BHCNL",
        "BHLNC   1                  1                       208,000            8                  no  ",
        "HBLNC   8                  4                       208,000            8                  131,072"),
    "What can I run?": (
        "vLLM 0.33.0: 15 backends; 80 others can't do what is asked",
        "FLASHINFER, LBHNC: first choice if capability is not None and capability.major == 10; supported otherwise",
        "FLASHINFER, BLHNC: ",
        "FLASH_ATTN                                   yes      1st      yes",
        "FLEX_ATTENTION                               –        1st      –", "From vLLM 0.32.0 to 0.33.0",
        "gone             MiniMaxM3IndexerAiterBackend", "cuda; now cuda, xpu"),
    "A writer, put to the test": (
        "kv_cache[block, :, state] = torch.cat", "Right in all 126 shapes", "6 of them with offsets past 2^31"),
    "The same with a classic bug": (
        "Wrong in 88 of 126 shapes", "LBHNC 14 of 21, LBNHC 2 of 21, LHBNC 20 of 21, BLHNC 19 of 21, BLNHC 14 of 21",
        "belongs at byte 58,624; it was written at byte 62,464", "2 right, 24 not written, 6 wrong value, 24"),
    "In Triton": ("@triton.jit", "tl.store(state + head_size + element", "triton_writer · ", "triton_flat_writer · ",
                  "belongs at byte 58,624; it was written at byte 62,464"),
    "A reader": ("def gather(", "Right in all 36 shapes", "LBHNC matches", "LBNHC matches", "LHBNC matches",
                 "BLHNC matches", "BLNHC matches", "BHLNC matches"),
    "vLLM's own kernel": ("reshape_and_cache_flash · ", "reshape_and_cache_flash_diffkv · "),
    "Where to go from here": (),
}
# {heading: the packages that a run needs, and how its first verdict and those of the rest go}
RUN_OR_RECORDED = {
    "In Triton": (("triton",), ("Right in all 30 shapes", "Wrong in 20 of 30 shapes"),
                  ("Right in all 126 shapes", "Wrong in 88 of 126 shapes")),
    "vLLM's own kernel": (("vllm", "triton"), ("Right in all 30 shapes",) * 2, ("Right in all 126 shapes",) * 2),
}
PICTURES = {"An idea, in ten lines": 1, "Which layout?": 1, "The same with a classic bug": 1}
