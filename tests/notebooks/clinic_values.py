"""What the outputs under each heading of ``notebooks/3_clinic.ipynb`` must say: the right values of the reports."""

RIGHT_VALUES = {
    "Garbage after loading a saved cache": (
        "LBNHC 117,440,512 bytes kvmap1-", "LBHNC 117,440,512 bytes kvmap1-", "offset 4,096 B", "offset 512 B"),
    "Garbage after a transfer between two engines": (
        "2 of 128 cells coincide", "(head, state): (0, 0) (7, 15)", "head 0, state 1   4,096   512",
        "written at 4,096, read at 512, where head slot 1 · state 0 lies"),
    "Only the first block is right": (
        "(187200, 74816)", "74,816 to 74,880 (padding)",
        "padding inside the page of model.layers.1.attn, block 0 (bytes 74,816 to 74,880)",
        "it lies at 187,200, the formula gives 74,816", "that byte is padding of model.layers.1.attn, block 0"),
    "Clearing a block spoils other requests": (
        "14,938,560", "14,975,936  15,088,320", "112,320", "block 98 ends    14,826,176  14,938,560",
        "block 98 wipes bytes of block 99 of 3 layers (model.layers.0.attn to model.layers.2.attn)",
        "112,320 bytes that it touches lie outside the allocation", "37,376 bytes of model.layers.2.attn are hit"),
    "One block holds another block's tokens": (
        "10, 11", "1,310,720  655,360", "5          2", "2 of 2", "3,636 kernel blocks",
        "it lies at 1,310,720, the formula gives 655,360",
        "That byte is K plane, kernel block 5 (manager block 2, part 2 of 2)"),
    "Scales are nonsense, data nearly right": (
        "state 1, data   128    132", "state 1, scale  8,196  260", "data coincides only in state 0",
        "scale coincides only in state 63", "98.4% of the 67,584 coordinates"),
    "Right on one rank, garbage on several": (
        "rank                           2              0", "684", "5, 44, 10, 44", "rank 2, 256 to 384 (right)"),
    "It crashes at large block ids": (
        "block 2,065  2,146,939,200  2,146,939,200", "block 2,066  2,147,978,880  -2,146,988,416",
        "Overflow leads here from: Block 2,066 of model.layers.0.attn"),
    "A TMA descriptor faults": (
        "page of 16,384 bytes", "126 pages: 63 layers, if K and V lie apart", "95.0 GiB",
        "2^31 bytes from block 1,041 on", "2^31 elements from block 2,081 on"),
    "Fine for a while, then a crash": (
        "89,067 kernel blocks", "(16, 0, 528, 0)", "kernel block 2,699  88,440,832   2,918,547,456: other plane",
        "5,837,094,912: outside", "V plane, 2,918,547,456 to 5,837,094,912",
        "That byte is V plane, kernel block 0 (manager block 0, part 1 of 33)"),
    "A slot leads out of the pool": (
        "block 4,740 x 16 + row 9", "block 18,962", "OUT of the pool of 16,384 blocks"),
    "Misaligned address": (
        "K    8 bytes                  0 or 8           1", "V    4 bytes                  4 or 12          0",
        "0 to 16 (right)", "368 to 384 (right)"),
    "Sizes and strides out of bounds for storage": (
        "asks for 606,208 bytes of a buffer of 327,680", "32,768 bytes inside a block and 49,152 across",
        "error: padded-split", "7, 573,440 to 606,208 (wrong)"),
    "A kernel of flat rows refuses the cache": (
        "41,984  3,469,056", "modulo 656             0       128", "528"),
    "The first axis is smaller than my slot": ("B, N, H, C", "block 103, row 13", "850,432"),
    "Which axis is K and V?": (
        "(100, 64, 576)        B, N, C ", "(2, 100, 16, 8, 128)  2, B, N, H, C",
        "(100, 2, 16, 8, 128)  B, 2, N, H, C", "(100, 8, 16, 256)     B, H, N, C", "ambiguous",
        "(4096, 8192, 256, 128, 1) fits 2BNHC\n"),
    "Two heads, or K and V?": ("Ambiguous: 2 readings fit", "[B, H, N, C]", "[B, 2, N, C]"),
    "Two groups write the same slot": (
        "group 0: block 2, row 0", "group 1: block 1, row 0", "Equal slots by themselves share nothing",
        "Block 2 of group 0 meets in group 1: (2,)"),
    "There is a 0 in my block table": (
        "Slot 5 is (block, row) (0, 5)", "null block", "Slot -1 is negative: vLLM ignores that token",
        "144 tokens: (10 - 1) × 16"),
}

# What the commands that the notebook names must print, one or more a heading, in their order there.
COMMANDS_SAY = {
    "Garbage after loading a saved cache": ("98.44%",),
    "Garbage after a transfer between two engines": ("offset 4,096 in A, 512 in B",),
    "Only the first block is right": (
        "model.layers.1.attn, block 0 (bytes 74,816 to 74,880)", "it lies at 187,200, the formula gives 74,816"),
    "Clearing a block spoils other requests": ("14,975,936", "112,320 bytes that it touches"),
    "One block holds another block's tokens": (
        "kernel block 10, row 0", "it lies at 1,310,720, the formula gives 655,360"),
    "Scales are nonsense, data nearly right": ("state 1, byte 128 of the state: K scale", "98.4%"),
    "Right on one rank, garbage on several": ("kernel block 10, row 44",),
    "It crashes at large block ids": ("Block 2,066 of model.layers.0.attn",),
    "A TMA descriptor faults": ("2^31 bytes from block 1,041 on",),
    "Fine for a while, then a crash": ("kernel block 528, row 0", "the formula gives 2,918,547,456"),
    "A slot leads out of the pool": ("block 4,740, row 9",),
    "Misaligned address": ("V begins at 4 or 12 modulo 16",),
    "Sizes and strides out of bounds for storage": ("606,208",),
    "A kernel of flat rows refuses the cache": ("528 bytes of padding", "offset 3,469,056 in A, 41,984 in B"),
    "The first axis is smaller than my slot": ("[B, N, H, C]", "block 103, row 13"),
    "Which axis is K and V?": ("Ambiguous",),
    "Two heads, or K and V?": ("Ambiguous",),
    "Two groups write the same slot": ("block 1, row 0",),
    "There is a 0 in my block table": ("null block",),
}
