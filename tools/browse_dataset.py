"""Draws what a config trains on: frames as the network gets them, augmented, with their ground truth.

mmdet3d's tool of this name draws no camera images of several cameras. tools/visualize.py draws frames as recorded.
"""
import argparse
from pathlib import Path

import numpy as np
from mmengine.config import Config, DictAction
from mmengine.registry import init_default_scope
from tqdm import tqdm

from georope.engine import local_file
from georope.engine.launch import merge_options
from georope.registry import DATASETS
from georope.visualization import Boxes, draw_frame, save_image


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('config', type=local_file, help='path of the config')
    parser.add_argument('--output-dir', type=Path, required=True, help='folder for the pictures, named by their tokens')
    parser.add_argument('--max-frames', type=int, default=20, help='so many, spread evenly (default %(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of the augmentation')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='change the config: key=value ...')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    cfg = Config.fromfile(args.config)
    merge_options(cfg, args.cfg_options or {})
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    np.random.seed(args.seed)
    chosen = np.linspace(0, len(dataset) - 1, min(args.max_frames, len(dataset))).round().astype(int)
    for index in tqdm(chosen.tolist()):
        item = dataset[index]
        images, sample = item['inputs']['img'], item['data_samples']
        if images.dim() == 5:  # a window: its last frame
            images, sample = images[-1], sample.frames[-1]
        truth = Boxes.from_instances(sample.gt_instances_3d, dataset.metainfo['classes'])
        picture = draw_frame(list(images.permute(0, 2, 3, 1).contiguous().numpy()), np.asarray(sample.lidar2img),
                             None, truth, sample.get('cam_names', ()), f'{sample.token}   {len(truth)} objects')
        save_image(str(args.output_dir / f'{sample.token}.png'), picture)
    print(f'{len(chosen)} pictures written to {args.output_dir}')


if __name__ == '__main__':
    main()
