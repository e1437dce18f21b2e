"""Finding offset bugs: checks, look-ups and comparisons on top of an address map."""

from kvlayout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    ".linting": ("lint",),
    ".limits": ("OffsetLimit", "offset_limits", "wrapped", "unwrapped"),
    ".alignment": ("Alignment", "RowFit", "alignments", "row_fits"),
    ".bounds": ("BlockSpan", "block_span"),
    ".contained": ("Containment", "containment"),
    ".blocks": ("BlockSplit", "block_splits"),
    ".ranks": ("compare_ranks", "count_dependent"),
    ".shares": ("PaddingShare", "padding_shares"),
    ".transfers": ("Transfer", "MemoryRegion", "transfer", "transfer_selections", "transfer_by_layout",
                   "registered_regions"),
    ".sides": ("Side",),
    ".exchanges": ("Exchange", "Misplaced", "exchange", "mistaken"),
    ".byte_map": ("fingerprint",),
    ".vocabulary": ("names", "no_word"),
    ".slots": ("decode_slot", "context_parallel_slot", "compare_block_sizes", "usable_tokens"),
    ".slot_reports": ("SlotEntry", "slot_report"),
    ".overlay": ("Strip", "PageLosses", "group_overlay", "page_losses"),
    ".meeting": ("Meeting", "meets", "slots_meet", "colliding_blocks"),
    ".touch": ("Touched", "touched"),
    ".meaning": ("Meaning", "explain_address", "parse_address"),
    ".readings": ("Reading", "find_readings", "describe_readings"),
    ".pasted_shapes": ("PastedTensor", "parse_shapes"),
    ".descriptor": ("DescriptorReading", "read_descriptor"),
    ".log_check": ("LogFact", "check_log"),
})
