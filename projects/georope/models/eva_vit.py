"""EVA-02's ViT (arXiv 2303.11331) with windowed attention, as StreamPETR's record configs use it (docs/ViT_Large.md of
its repository): timm's blocks, no class token, stride 16."""
from __future__ import annotations

import importlib

import torch
from mmengine.model import BaseModule
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from georope.registry import MODELS

from .timm_backbone import freeze, import_timm


@MODELS.register_module()
class EvaViT(BaseModule):
    """One map of stride 16 from images of any size.

    Every third block attends within large windows, the others within small ones. The rotary code of a window spans as
    many cells as at pretraining, whatever its size. A map is padded below and to the right to whole windows, behind the
    norm: padded tokens have keys of zero, and take part in attention, as in the published weights.

    Parameters have timm's names, behind ``vit.``; ``models.conversion`` knows those of the published detectors.

    Args:
        embed_dim, depth, num_heads: of the ViT; ViT-L as published by default.
        window_size: cells along a side of a small window.
        global_window_size: cells along a side of the windows of every third block; published: the image's shorter side
            / 16, i.e. 20 for 320x800 images and 50 for 800x1600.
        pretrain_size: cells along a side of the position embedding.
        drop_path_rate: stochastic depth of the last block; earlier ones have less.
        frozen_stages: -1 trains everything, 0 freezes the patch and position embedding, i also the first i blocks.
        with_cp: recompute blocks in the backward pass instead of keeping their activations.
    """
    STRIDE = 16
    ROPE_CELLS = 16  # along a side, at pretraining

    def __init__(self, embed_dim: int = 1024, depth: int = 24, num_heads: int = 16, window_size: int = 16,
                 global_window_size: int = 20, pretrain_size: int = 14, drop_path_rate: float = 0.3,
                 frozen_stages: int = -1, with_cp: bool = False, init_cfg: dict | list | None = None) -> None:
        super().__init__(init_cfg)
        import_timm()
        self.vit = importlib.import_module('timm.models.eva').Eva(
            img_size=pretrain_size * self.STRIDE, patch_size=self.STRIDE, num_classes=0, global_pool='',
            class_token=False, use_post_transformer_norm=False, embed_dim=embed_dim, depth=depth, num_heads=num_heads,
            mlp_ratio=4 * 2 / 3, qkv_fused=False, swiglu_mlp=True, scale_mlp=True, use_rot_pos_emb=True,
            ref_feat_shape=(self.ROPE_CELLS, self.ROPE_CELLS), dynamic_img_size=True, drop_path_rate=drop_path_rate)
        self.windows = [global_window_size if i % 3 == 2 else window_size for i in range(depth)]
        self.pretrain_size = pretrain_size
        self.with_cp = with_cp
        self.channels, self.strides = (embed_dim, ), (self.STRIDE, )
        self.frozen = freeze(self, [name for name, layer in self.layer_ids().items() if layer <= frozen_stages])

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Images (n, 3, h, w) -> one map (n, embed_dim, h / 16, w / 16)."""
        x = self.vit.patch_embed(x)  # (n, rows, columns, channels)
        size = (self.pretrain_size, self.pretrain_size)
        position = self.vit.pos_embed.unflatten(1, size).permute(0, 3, 1, 2)
        position = F.interpolate(position.float(), x.shape[1:3], mode='bicubic', align_corners=False)
        x = x + position.permute(0, 2, 3, 1).to(x.dtype)
        for block, window in zip(self.vit.blocks, self.windows):
            if self.with_cp and self.training and torch.is_grad_enabled():
                x = checkpoint(self._block, block, x, window, use_reentrant=False)
            else:
                x = self._block(block, x, window)
        return (x.permute(0, 3, 1, 2).contiguous(), )

    def train(self, mode: bool = True) -> EvaViT:
        super().train(mode)
        for module in self.frozen:
            module.eval()
        return self

    def layer_ids(self) -> dict[str, int]:
        """Parameter -> number of its layer, from 0, the embeddings; see ``LayerDecayConstructor``."""
        return {name: int(name.split('.')[2]) + 1 if name.startswith('vit.blocks.') else 0
                for name, _ in self.named_parameters()}

    def _block(self, block, x: Tensor, window: int) -> Tensor:
        """timm's block, with attention within windows: x (n, rows, columns, channels)."""
        rows, columns = x.shape[1:3]
        rope = self.vit.rope.get_embed((window, window))
        parts = F.pad(block.norm1(x), (0, 0, 0, -columns % window, 0, -rows % window))
        grid = (parts.shape[1] // window, parts.shape[2] // window)
        parts = parts.unflatten(2, (-1, window)).unflatten(1, (-1, window)).transpose(2, 3)
        parts = block.attn(parts.flatten(0, 2).flatten(1, 2), rope=rope)
        parts = parts.unflatten(0, (-1, *grid)).unflatten(3, (window, window)).transpose(2, 3)
        x = x + block.drop_path1(parts.flatten(3, 4).flatten(1, 2)[:, :rows, :columns])
        return x + block.drop_path2(block.mlp(block.norm2(x)))
