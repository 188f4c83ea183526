"""Attention kernels by accelerator: what it can't run is neither chosen nor taken."""

import pytest

from planner.base.errors import InputError
from planner.hardware import load_cluster
from planner.layouts import Attention
from planner.question import numerics
from planner.search import attention_kernels, default_attention

NEWEST = {
    "dgx-1-v100": Attention.FUSED, "dgx-a100-80gb": Attention.FLASH2, "l4-pcie": Attention.FLASH2,
    "mi300x-server": Attention.FLASH2, "dgx-h100": Attention.FLASH3, "gb200-nvl72": Attention.FLASH3,
    "dgx-b300": Attention.FLASH3,
}  # fmt: skip


@pytest.mark.parametrize(("name", "newest"), NEWEST.items())
def test_the_newest_kernel_that_runs_is_the_default_and_later_ones_are_refused(name, newest):
    cluster = load_cluster(name)
    assert default_attention(cluster) == attention_kernels(cluster)[-1] == newest
    for kernel in Attention:
        if kernel <= newest:
            assert numerics(cluster, None, kernel.name.lower())[1] == kernel
        else:
            with pytest.raises(InputError, match=f"attention is {kernel.name.lower()}; .* has: unfused, fused"):
                numerics(cluster, None, kernel.name.lower())
