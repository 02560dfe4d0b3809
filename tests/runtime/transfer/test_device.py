from __future__ import annotations

import torch

from hicachectl.runtime.transfer.device import CpuOrder, device_order


def test_the_processor_needs_no_stream_and_runs_the_block_at_once() -> None:
    order = device_order(torch.device("cpu"))
    assert isinstance(order, CpuOrder)
    ran = []
    with order.after(order.mark()):
        ran.append(True)
    assert ran == [True]
