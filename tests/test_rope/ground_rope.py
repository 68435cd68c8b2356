"""The example of projects/georope/rope/README.md."""
from georope.registry import MODELS
from georope.rope import RoPE3D, Support


@MODELS.register_module()
class GroundRoPE(RoPE3D):
    """Every image token lies where its ray meets the ground, or at ``farthest`` where it does not.

    Args:
        ground: height of the ground in the LiDAR frame, metres.
        farthest: greatest depth, metres.
    """

    decisive = ('ground', 'farthest')

    def __init__(self, *args, ground=-1.8, farthest=60.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.ground, self.farthest = ground, farthest

    def depths(self, rays):
        depths = (self.ground - rays.origins[..., 2:]) / rays.directions[..., 2:]
        return depths.where((depths > 0) & (depths < self.farthest), self.farthest)  # (B, L, 1)

    def prepare(self, rays, metas=None):
        return self.rotate_queries(rays.origins + self.depths(rays) * rays.directions)

    def support(self, rays, features, layer=0):
        return Support(self.depths(rays))
