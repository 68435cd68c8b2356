"""The example of projects/georope/rope/README.md."""
import torch

from georope.registry import MODELS
from georope.rope import RoPE3D, Rotation


@MODELS.register_module()
class GroundRoPE(RoPE3D):
    """Every image token lies where its ray meets the ground, or at ``farthest`` where it does not.

    Args:
        ground: height of the ground in the LiDAR frame, metres.
        farthest: greatest depth, metres.
    """

    def __init__(self, *args, ground=-1.8, farthest=60.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.ground, self.farthest = ground, farthest

    def prepare(self, rays):
        with torch.autocast(rays.origins.device.type, enabled=False):
            depth = (self.ground - rays.origins[..., 2:]) / rays.directions[..., 2:]
            depth = depth.where((depth > 0) & (depth < self.farthest), self.farthest)
            phase = self.bands(rays.origins + depth * rays.directions)  # (B, L, 1 or heads, pairs)
            return Rotation.from_phase(phase.transpose(1, 2), self.rotate_values)
