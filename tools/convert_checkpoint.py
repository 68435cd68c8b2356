"""Converts released weights of PETR and StreamPETR to a config of ours, and reports what became of every tensor.

    python tools/convert_checkpoint.py CONFIG RELEASED.pth OUT.pth [--box-era ERA]

The config must describe the same model, e.g. configs/petr/petr-classic_vov-800x320_8xb1-24e_nus-3d.py. Another
encoding starts from a converted checkpoint with load_from. Where the names come from and what the eras of box codes are
is told in georope/models/conversion.py.
"""
import argparse
from pathlib import Path

import torch
from mmengine.config import DictAction
from mmengine.runner import CheckpointLoader

from georope.engine import build_model, local_file, read_weights
from georope.errors import one_line_errors
from georope.files import written_beside
from georope.models.conversion import ERAS, convert


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Convert released weights of PETR and StreamPETR')
    parser.add_argument('config', type=local_file, help='config of the same model in georope')
    parser.add_argument('checkpoint', type=local_file, help='released checkpoint, a path or an address')
    parser.add_argument('out', type=Path, help='where the converted checkpoint goes; must not exist')
    parser.add_argument('--box-era', choices=ERAS, help='whose boxes the weights were trained with, where the '
                        'checkpoint does not tell: mmdet3d-0.x (releases of megvii and of mmdet3d projects/PETR), '
                        'projects-petr (projects/PETR since 2023-01-19), mmdet3d-1.x')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='change the config: key=value ...')
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f'{args.out} exists already')
    return args


@one_line_errors
def main() -> None:
    args = parse_args()
    cfg, model = build_model(args.config, args.cfg_options)
    checkpoint = CheckpointLoader.load_checkpoint(args.checkpoint, map_location='cpu')
    try:
        result = convert(read_weights(checkpoint), model, args.box_era, checkpoint.get('meta') or {})
    except ValueError as error:
        raise SystemExit(f'{args.checkpoint}: {error}') from error
    content = dict(state_dict=result.state_dict, meta=dict(
        cfg=cfg.pretty_text, dataset_meta=dict(classes=cfg.class_names), converted_from=Path(args.checkpoint).name,
        box_era=result.era))
    with written_beside(args.out) as beside:
        torch.save(content, beside)
    print(result.report())
    print(f'written: {args.out}')


if __name__ == '__main__':
    main()
