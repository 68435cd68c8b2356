"""Pictures of the predictions during testing."""
from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from mmengine.hooks import Hook
from mmengine.logging import MMLogger

from georope.registry import HOOKS
from georope.visualization.boxes import Boxes
from georope.visualization.draw import draw_frame
from georope.visualization.files import save_image


@HOOKS.register_module()
class DetectionVisualizationHook(Hook):
    """Writes one PNG per test frame, named by its sample token: all cameras and the bird's-eye view.

    The boxes are drawn on the images as the network saw them (resized, cropped), because the ``lidar2img`` of the
    data samples belongs to these. ``tools/visualize.py`` draws the original images. Ground truth is drawn too where
    the test pipeline packs it.

    Args:
        draw: whether to do anything; ``tools/test.py --show-dir`` turns it on.
        test_out_dir: folder of the pictures, below ``work_dir/timestamp`` if relative, as in mmdet3d.
        score_thr: boxes below this score are not drawn.
        vis_task: mmdet3d's ``tools/test.py --task``; only 'multi-view_det' makes sense here.
    """

    def __init__(self, draw: bool = False, test_out_dir: str | None = None, score_thr: float = 0.25,
                 vis_task: str = 'multi-view_det') -> None:
        if draw and test_out_dir is None:
            raise ValueError('DetectionVisualizationHook writes files and opens no window: set test_out_dir '
                             '(tools/test.py --show-dir)')
        if vis_task != 'multi-view_det':
            raise ValueError(f'DetectionVisualizationHook draws camera images: vis_task {vis_task!r} is not possible, '
                             "use 'multi-view_det'")
        self.draw, self.test_out_dir, self.score_thr = draw, test_out_dir, score_thr

    def after_test_iter(self, runner, batch_idx: int, data_batch: dict | None = None,
                        outputs: Sequence | None = None) -> None:
        """Draw every frame of the batch."""
        if not self.draw:
            return
        folder = os.path.join(runner.work_dir, runner.timestamp, self.test_out_dir)
        classes = runner.test_dataloader.dataset.metainfo['classes']
        for views, sample in zip(data_batch['inputs']['img'], outputs):
            images = list(views.permute(0, 2, 3, 1).clamp(0, 255).byte().cpu().contiguous().numpy())
            predictions = Boxes.from_instances(sample.pred_instances_3d, classes).above(self.score_thr)
            truth = Boxes.from_instances(sample.gt_instances_3d, classes) if 'gt_instances_3d' in sample and \
                'bboxes_3d' in sample.gt_instances_3d else None
            picture = draw_frame(images, np.asarray(sample.lidar2img), predictions, truth,
                                 sample.get('cam_names', ()), f'{sample.token}   frame {sample.get("frame_idx", "?")}')
            save_image(os.path.join(folder, f'{sample.token}.png'), picture)

    def after_test(self, runner) -> None:
        """Say where the pictures are."""
        if self.draw:
            MMLogger.get_current_instance().info(
                f'pictures written to {os.path.join(runner.work_dir, runner.timestamp, self.test_out_dir)}')
