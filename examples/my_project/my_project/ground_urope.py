"""An encoding of our own: URoPE whose depths end at the ground."""
import torch
from mmdet3d.registry import MODELS

from georope.rope import Rays, URoPE


@MODELS.register_module()
class GroundURoPE(URoPE):
    """URoPE, but no token lies below the ground: where its ray meets it before the anchor, the token lies there.

    Args:
        ground: height of the flat ground in metres; 0 in the ego frame, which is that of data without LiDAR.
    """

    decisive = ('ground', )  # what, beside URoPE's own, makes trained weights those of another model

    def __init__(self, *args, ground: float = 0.0, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.ground = ground

    def token_depths(self, rays: Rays) -> torch.Tensor:
        depth = (self.ground - rays.origins[..., 2]) / rays.directions[..., 2]
        return self.depths.minimum(depth.where(depth > 0, torch.inf)[..., None, None])  # (B, L, heads, 1)
