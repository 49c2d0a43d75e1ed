"""What others have published of failures of GPU nodes, to set ours beside.

Failures per 1,000 node-days of 8 GPUs. Each fleet counts in its own way (a job that a node ended, an interruption, a
recorded fault), so a factor of two between two of them says little. By cause only the trace can be compared.
"""

from __future__ import annotations

from typing import Final

FLEETS: Final = (
    ("Meta RSC-2", 2.34, "jobs ended by their node", "Kokolis et al., HPCA 2025, arXiv 2410.21680"),
    ("Meta RSC-1", 6.50, "jobs ended by their node", "Kokolis et al., HPCA 2025, arXiv 2410.21680"),
    ("Meta, Llama 3 405B", 3.79, "419 unexpected interruptions of 2,048 nodes in 54 days", "arXiv 2407.21783, table 5"),
    ("InfiniteHBD trace, all", 4.20, "recorded faults of 400 nodes in 348 days", "arXiv 2502.03885, its trace"),
    ("InfiniteHBD trace, hardware", 2.14, "the same without unknown and test failures", "arXiv 2502.03885, its trace"),
)
"""Fleet, failures per 1,000 node-days, what was counted, source."""

BY_CAUSE: Final = {
    "memory_errors": 0.431, "link_down": 0.287, "pcie_degraded": 0.180, "gpu_lost": 0.036, "thermal": 0.014,
    "driver_fault": 0.144, "link_degraded": 0.072,
}  # fmt: skip
"""InfiniteHBD's trace in our words, per 1,000 node-days: double-bit errors above threshold; link down; PCIe width low;
GPU lost; temperature; Xid and nvidia-smi timeout; NIC speed low."""
