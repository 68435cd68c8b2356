#!/usr/bin/env python
"""The cost of a model: parameters and FLOPs by part, frames per second and peak memory of inference. Prints a table.

    tools/analysis.py configs/petr/petr-urope_r50_8xb2-24e_nus-3d.py
    tools/analysis.py CONFIG... --device cuda --amp float16

FLOPs are torch's count (torch.utils.flop_counter: convolutions, linear layers, attention; 2 per multiply-add, nothing
elementwise) of one frame of all cameras. An encoding's are those of its own layers: rotations are elementwise. Memory
is that of tensors above the parameters. Images and weights are random. Needs torch >= 2.4.
"""
import argparse
import gc
import statistics
import time
from pathlib import Path

import torch
from mmdet3d.structures import Det3DDataSample
from mmengine.config import DictAction
from mmengine.logging import MMLogger
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from georope.engine import build_model, local_file
from georope.export import made_up_frames

PARTS = ('backbone', 'neck', 'encoding', 'decoder', 'rest of the head', '2D head')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='+', type=local_file)
    parser.add_argument('--cameras', type=int, default=6, help='default: %(default)s')
    parser.add_argument('--image', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help="size of the images; default: final_dim of ImageAug in the config's test pipeline")
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--amp', choices=['bfloat16', 'float16'], help='mixed precision; default: float32')
    parser.add_argument('--frames', type=int, default=5, help='timed; 0 counts alone; default: %(default)s')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={}, help='change the configs: key=value')
    return parser.parse_args()


def parts_of(model: nn.Module) -> dict[str, list[nn.Module]]:
    """The modules of each part; ``rest of the head`` is what is left."""
    head = model.pts_bbox_head
    found = {'backbone': [model.img_backbone], 'neck': [model.img_neck], 'encoding': [
        part for part in (getattr(head, 'encoding', None), getattr(head, 'self_encoding', None)) if part is not None],
        'decoder': [head.transformer['decoder']] if hasattr(head, 'transformer') else [],
        '2D head': [model.img_roi_head] if getattr(model, 'img_roi_head', None) is not None else []}
    return {name: found.get(name, []) for name in PARTS}


def parameters(model: nn.Module) -> dict[str, int]:
    """Number of parameters of each part; each tensor counts once."""
    def count(modules: list[nn.Module]) -> int:
        return sum(p.numel() for p in {p for module in modules for p in module.parameters()})
    counts = {name: count(modules) for name, modules in parts_of(model).items()}
    counts['rest of the head'] = count([model]) - sum(counts.values())
    return counts


def flops(model: nn.Module, run) -> dict[str, int]:
    """FLOPs of each part in one call of ``run``."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # it knows no fused kernel of a CPU
        run()
    names = {module: name for name, module in model.named_modules()}
    prefix = type(model).__name__

    def count(modules: list[nn.Module]) -> int:
        """FLOPs of modules, and of submodules that are called directly: an encoding has no forward of its own."""
        own = [f'{prefix}.{names[module]}' for module in modules]
        outermost = {}
        for name in counter.flop_counts:
            root = next((path for path in own if name == path or name.startswith(f'{path}.')), None)
            if root is not None and not any(name.startswith(f'{other}.') for other in outermost):
                outermost = {other: value for other, value in outermost.items() if not other.startswith(f'{name}.')}
                outermost[name] = sum(counter.flop_counts[name].values())
        return sum(outermost.values())
    counts = {name: count(modules) for name, modules in parts_of(model).items()}
    counts['rest of the head'] = counter.get_total_flops() - sum(counts.values())
    return counts


class Runs:
    """Frames of a stream through a model, as tests run them."""

    def __init__(self, model: nn.Module, size: tuple[int, int], args: argparse.Namespace) -> None:
        self.model, self.args = model, args
        self.frames = iter(made_up_frames(size, args.cameras, 1))

    def __call__(self) -> None:
        frame = next(self.frames)
        data = dict(inputs=dict(img=[torch.from_numpy(frame['images'])]),
                    data_samples=[Det3DDataSample(metainfo={k: v for k, v in frame.items() if k != 'images'})])
        device, amp = self.args.device.split(':')[0], self.args.amp
        with torch.no_grad(), torch.autocast(device, getattr(torch, amp or 'float32'), enabled=amp is not None):
            self.model.test_step(data)
        if device == 'cuda':
            torch.cuda.synchronize()


def peak_memory(run: Runs) -> int:
    """Peak bytes in addition to parameters and other tensors that exist before; on a CPU, of its allocator."""
    if run.args.device.startswith('cuda'):
        torch.cuda.reset_peak_memory_stats(run.args.device)
        before = torch.cuda.memory_allocated(run.args.device)
        run()
        return torch.cuda.max_memory_allocated(run.args.device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    total = most = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == '[memory]']
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


def main() -> None:
    args = parse_args()
    MMLogger.get_current_instance().setLevel('ERROR')
    gpu = args.device.startswith('cuda')
    where = torch.cuda.get_device_name(args.device) if gpu else f'CPU, {torch.get_num_threads()} threads'
    print(f'{args.cameras} cameras, batch 1, {args.amp or "float32"}, {where}, torch {torch.__version__}; parameters / '
          f'GFLOPs by part\n\n| model | image | {" | ".join(PARTS)} | all | frames/s | peak memory |\n'
          f'|---|---|{"---|" * len(PARTS)}---|---|---|', flush=True)
    for path in args.configs:
        cfg, model = build_model(path, {'model.img_backbone.init_cfg': None, **args.cfg_options})
        pipeline = cfg.test_dataloader.dataset.pipeline
        size = tuple(args.image or next(step.final_dim for step in pipeline if 'final_dim' in step))
        model.init_weights()
        model.to(args.device).eval()
        run = Runs(model, size, args)
        counts, work = parameters(model), flops(model, run)
        run.frames = iter(made_up_frames(size, args.cameras, args.frames + 1))
        # Of one thread CPU seconds: other processes on the machine do not count.
        clock = time.perf_counter if gpu or torch.get_num_threads() > 1 else time.process_time
        times = []
        for _ in range(args.frames):
            start = clock()
            run()
            times.append(clock() - start)
        cells = [f'{number / 1e6:.3g} M / {work[name] / 1e9:.3g}' if number or work[name] else '-'
                 for name, number in counts.items()]
        total = f'{sum(counts.values()) / 1e6:.3g} M / {sum(work.values()) / 1e9:.3g}'
        measured = f'{1 / statistics.median(times):.2g} | {peak_memory(run) / 2**20:.0f} MiB' if times else '- | -'
        print(f'| {Path(path).stem} | {size[0]}x{size[1]} | {" | ".join(cells)} | {total} | {measured} |', flush=True)
        del model, run
        gc.collect()


if __name__ == '__main__':
    main()
