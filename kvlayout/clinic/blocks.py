"""Kernel blocks against manager blocks: ids, slots and offsets right, and as two classic mistakes give them."""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.address import AddressMap
from kvlayout.clinic.block_bytes import kernel_size_of
from kvlayout.clinic.wording import layers_text, plural
from kvlayout.config import KVCacheConfig
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.finding import Finding
from kvlayout.spec import KVCacheSpec


@dataclass(frozen=True)
class BlockSplit:
    """Manager blocks of ``block_size`` tokens seen as kernel blocks of ``kernel_block_size`` tokens.

    ``block_stride``: bytes from manager block to manager block. ``planes``: 2 where K and V are planes of their own,
    one behind the other, each of ``num_blocks`` manager blocks; 1 where a page holds both.
    """

    block_size: int
    kernel_block_size: int
    num_blocks: int
    block_stride: int
    planes: int = 1

    def __post_init__(self):
        for name, least in (("block_size", 1), ("kernel_block_size", 1), ("num_blocks", 0), ("block_stride", 1),
                            ("planes", 1)):
            object.__setattr__(self, name, check_int(name, getattr(self, name), minimum=least))
        if self.block_size % self.kernel_block_size:
            raise LayoutError("kernel_block_size", self.kernel_block_size,
                              f"must divide the block size {self.block_size}")
        if self.block_stride % self.factor:
            raise LayoutError("block_stride", self.block_stride,
                              f"must be {plural(self.factor, 'equal part')} of whole bytes")

    @property
    def factor(self) -> int:
        """Kernel blocks of one manager block."""
        return self.block_size // self.kernel_block_size

    @property
    def num_kernel_blocks(self) -> int:
        """Kernel blocks of one plane."""
        return self.num_blocks * self.factor

    @property
    def kernel_block_stride(self) -> int:
        """Bytes from kernel block to kernel block."""
        return self.block_stride // self.factor

    @property
    def first_out_of_plane(self) -> int:
        """The kernel id whose offset, taken with the manager's stride, is exactly its plane's end: no fault yet
        where another plane follows.
        """
        return self.num_blocks

    @property
    def first_fault(self) -> int:
        """The first kernel id whose offset, taken with the manager's stride, is past every plane."""
        return self.planes * self.num_blocks

    def kernel_ids(self, block: int) -> range:
        """Return the kernel blocks of one manager block."""
        block = self._check("block", block, self.num_blocks)
        return range(block * self.factor, (block + 1) * self.factor)

    def slot(self, slot: int) -> tuple[int, int, int, int]:
        """Return (manager block, row, kernel block, kernel row) of a slot of at least 0."""
        slot = self._check("slot", slot, self.num_blocks * self.block_size)
        return *divmod(slot, self.block_size), *divmod(slot, self.kernel_block_size)

    def offset(self, kernel_block: int) -> int:
        """Return the byte offset of a kernel block in its plane."""
        return self._check("kernel_block", kernel_block, self.num_kernel_blocks) * self.kernel_block_stride

    def with_manager_stride(self, kernel_block: int) -> tuple[int, str]:
        """Return the wrong offset, kernel id x manager stride, and where: "plane", "other plane", "outside"."""
        kernel_block = self._check("kernel_block", kernel_block, self.num_kernel_blocks)
        place = "plane" if kernel_block < self.first_out_of_plane else \
            "other plane" if kernel_block < self.first_fault else "outside"
        return kernel_block * self.block_stride, place

    def with_manager_id(self, block: int) -> tuple[int, int, int]:
        """Return the wrong offset, manager id x kernel stride, and whose that is: (offset, manager block, part)."""
        block = self._check("block", block, self.num_blocks)
        return block * self.kernel_block_stride, *divmod(block, self.factor)

    def _check(self, name: str, value: object, limit: int) -> int:
        value = check_int(name, value, minimum=0)
        if value >= limit:
            raise LayoutError(name, value, f"must be below {limit:,}")
        return value


def block_splits(address_map: AddressMap) -> dict[int, BlockSplit]:
    """Return {group: its split} for the groups whose kernel blocks are smaller than the manager's."""
    check_type("address_map", address_map, AddressMap)
    found = {}
    for region in address_map.regions:
        size = kernel_size_of(address_map.kernel_block_sizes, region.group)
        if size is not None and size != region.spec.block_size and region.geometry.shape[1]:
            found.setdefault(region.group, BlockSplit(region.spec.block_size, size, address_map.config.num_blocks,
                                                      region.tensor.block_stride))
    return found


def lint_splits(address_map: AddressMap) -> list[Finding]:
    """Return a note for each group whose kernels count other blocks than the manager."""
    found = []
    for group, split in block_splits(address_map).items():
        found.append(Finding(
            "kernel-blocks", "note",
            f"Group {group}: a block of {split.block_size:,} tokens is {split.factor:,} kernel blocks of "
            f"{split.kernel_block_size:,}, so block b is kernel blocks {split.factor:,} b to {split.factor:,} b + "
            f"{split.factor - 1:,}, {split.kernel_block_stride:,} bytes apart, and there are "
            f"{split.num_kernel_blocks:,} of them.",
            {"factor": split.factor, "block_size": split.block_size, "kernel_block_size": split.kernel_block_size,
             "num_kernel_blocks": split.num_kernel_blocks, "kernel_block_stride": split.kernel_block_stride},
            {"layer": address_map.config.kv_cache_groups[group].layer_names[0]},
            "Take id and stride both in kernel blocks, or both in manager blocks"))
    return found


@dataclass(frozen=True)
class UnevenSteps:
    """A block that isn't one dense page, seen as kernel blocks: no single stride leads through it.

    ``inside_step``, ``across_step``: bytes from a kernel block to the next inside a block, and across its end.
    ``asked_bytes``: what a view with the block stride for each kernel block spans; ``buffer_bytes``: what there is.
    """

    factor: int
    inside_step: int
    across_step: int
    asked_bytes: int
    buffer_bytes: int


def uneven_steps(spec: KVCacheSpec, num_blocks: int, kernel_block_size: int, block_stride: int | None = None,
                 buffer_bytes: int | None = None) -> UnevenSteps | None:
    """Return the two steps that kernel blocks would need; None where one is enough.

    ``block_stride``: bytes, by default the padded page; ``buffer_bytes`` by default num_blocks of that.
    """
    check_type("spec", spec, KVCacheSpec)
    num_blocks = check_int("num_blocks", num_blocks, minimum=1)
    kernel_block_size = check_int("kernel_block_size", kernel_block_size, minimum=1)
    if spec.block_size % kernel_block_size:
        raise LayoutError("kernel_block_size", kernel_block_size, f"must divide the block size {spec.block_size}")
    stride = spec.page_size_bytes if block_stride is None else check_int("block_stride", block_stride, minimum=1)
    size = num_blocks * stride if buffer_bytes is None else check_int("buffer_bytes", buffer_bytes, minimum=0)
    factor = spec.block_size // kernel_block_size
    inside = spec.unpadded_page_size_bytes // factor
    across = stride - (factor - 1) * inside
    if factor == 1 or across == inside:
        return None
    return UnevenSteps(factor, inside, across, (num_blocks * factor - 1) * stride + inside, size)


def lint_uneven(config: KVCacheConfig, kernel_block_sizes) -> list[Finding]:
    """Return an error for each tensor whose blocks aren't one dense page and are to be split."""
    found = []
    specs = config.layer_specs
    for index, tensor in enumerate(config.kv_cache_tensors):
        known = [name for name in tensor.layers if name in specs]
        if not known or not config.num_blocks or not tensor.block_stride:
            continue
        spec, size = specs[known[0]], kernel_size_of(kernel_block_sizes, config.group_of(known[0]))
        if size is None or spec.block_size % size:
            continue
        steps = uneven_steps(spec, config.num_blocks, size, tensor.block_stride, tensor.size)
        if steps is None:
            continue
        padded = spec.page_size_padded is not None
        found.append(Finding(
            "padded-split" if padded else "packed-split", "error",
            f"Kernel blocks of {size} tokens in {layers_text(known)} would need two steps, {steps.inside_step:,} "
            f"bytes inside a block and {steps.across_step:,} across, which one stride can't give; a view that steps "
            f"by the block stride asks for {steps.asked_bytes:,} bytes of a buffer of {steps.buffer_bytes:,}.",
            {"inside_step": steps.inside_step, "across_step": steps.across_step, "asked_bytes": steps.asked_bytes,
             "buffer_bytes": steps.buffer_bytes, "factor": steps.factor, "tensor": index,
             "page_bytes": spec.unpadded_page_size_bytes, "block_stride": tensor.block_stride},
            {"layer": known[0], "block": 0},
            f"Use block_size={size}, or pages without padding in a layer-compact layout"))
    return found
