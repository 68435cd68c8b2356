#!/usr/bin/env python
"""Export a detector to ONNX, check it with onnxruntime on the CPU and time both. docs/deployment.md tells what is next.

    tools/export.py CONFIG CHECKPOINT --out detector.onnx
    tools/export.py CONFIG... --out folder          # without weights: what can be exported, how exactly, how fast

Needs `pip install "georope[export]"` and torch >= 2.6. Exits with 1 where a graph is farther from its model than 1e-4
in a logit or 1e-3 m in a centre, over a stream of 5 made-up frames.
"""
import argparse
import gc
import sys
from pathlib import Path

import torch
from mmengine.config import Config, DictAction
from mmengine.logging import MMLogger
from torch import nn

from georope.engine import build_model, local_file
from georope.export import ExportedDetector, check, export_onnx, made_up_frames, onnx_runner
from georope.inference import Detector

LOGITS, METRES = 1e-4, 1e-3


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='+', metavar='CONFIG [CHECKPOINT]', type=local_file,
                        help='a config and its checkpoint, or configs alone: weights are then drawn')
    parser.add_argument('--out', required=True, help='the .onnx file; of several configs, the folder for them')
    parser.add_argument('--cameras', type=int, default=6, help='default: %(default)s')
    parser.add_argument('--image', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help="size of the images; default: final_dim of ImageAug in the config's test pipeline")
    parser.add_argument('--frames', type=int, default=5, help='of the check; default: %(default)s')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={}, help='change the configs: key=value')
    args = parser.parse_args()
    args.checkpoint = args.configs.pop() if len(args.configs) == 2 and not args.configs[1].endswith('.py') else None
    return args


def drawn(path: str, options: dict) -> tuple[Config, nn.Module]:
    """A model whose weights are drawn: as training starts, but none is 0, so that depths and motion count."""
    cfg, model = build_model(path, {'model.img_backbone.init_cfg': None, **options})
    torch.manual_seed(0)
    model.init_weights()
    with torch.no_grad():
        for parameter in model.pts_bbox_head.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.1 / parameter.shape[-1] ** 0.5)
    return cfg, model


def main() -> None:
    args = parse_args()
    MMLogger.get_current_instance().setLevel('ERROR')  # every parameter's initialisation
    good = True
    if not args.configs[1:]:
        print(f'torch {torch.__version__}, {torch.get_num_threads()} threads, {args.cameras} cameras, '
              f'{args.frames} frames')
    print('| model | logits | centres | other codes | eager | onnxruntime |\n|---|---|---|---|---|---|', flush=True)
    for path in args.configs:
        name = Path(path).stem
        if args.checkpoint:
            cfg = Config.fromfile(path)
            cfg.merge_from_dict(args.cfg_options)
            model = Detector.from_checkpoint(cfg, args.checkpoint, 'cpu').model
        else:
            cfg, model = drawn(path, args.cfg_options)
        pipeline = cfg.test_dataloader.dataset.pipeline
        size = args.image or next(step.final_dim for step in pipeline if 'final_dim' in step)
        out = Path(args.out)
        out = out if out.suffix == '.onnx' and len(args.configs) == 1 else out / f'{name}.onnx'
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            detector = ExportedDetector(model.eval(), tuple(size), args.cameras)
            export_onnx(detector, out)
        except Exception as error:  # whatever the exporter raises: the reason in one line
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())[:300]
            print(f'| {name} | cannot be exported: {reason} |', flush=True)
            good = False
            continue
        found = check(detector, model, made_up_frames(tuple(size), args.cameras, args.frames), onnx_runner(out))
        bad = found.logits > LOGITS or found.boxes > METRES
        good &= not bad
        print(f'| {name} | {found.logits:.1e} | {found.boxes:.1e} m | {found.codes:.1e} | {1000 * found.eager:.0f} ms '
              f'| {1000 * found.graph:.0f} ms |{" too far" if bad else ""}', flush=True)
        del model, detector
        gc.collect()
    sys.exit(not good)


if __name__ == '__main__':
    main()
