"""From the host to a device without waiting for it."""
import torch
from torch import Tensor


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device``; from the CPU to a GPU it passes pinned memory, so that the host does not wait until the GPU
    has done all that it was asked for before."""
    if device.type == 'cuda' and x.device.type == 'cpu':
        x = x.pin_memory()
    return x.to(device, non_blocking=True)
