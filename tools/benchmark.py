#!/usr/bin/env python
"""Cost of encodings in the decoder: time and peak memory against none, in alternation.

    tools/benchmark.py                                  # 900 queries x 4224 tokens x 6 layers, forward + backward
    tools/benchmark.py --encodings gta my.py --profile  # others, and where the time goes
    tools/benchmark.py --mmdet3d ../mmdetection3d       # the same sizes through its projects/PETR decoder too

Only the ratios mean something: times depend on the machine and on what else runs there.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.utils import track_iter_progress

from georope.models.decoder import PETRDecoder
from georope.registry import MODELS
from georope.rope import Rays

DIMS, HEADS, FEATURES, STRIDE = 256, 8, (16, 44), 16
ENCODINGS = Path(__file__).resolve().parents[1] / 'configs/_base_/encodings'


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--encodings', nargs='+', default=['urope', 'urope-mixed', 'worldrope', 'worldrope-mixed'],
                        help='names in configs/_base_/encodings, or config files with an `encoding`')
    parser.add_argument('--queries', type=int, default=900)
    parser.add_argument('--cameras', type=int, default=6)
    parser.add_argument('--layers', type=int, default=6)
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--profile', action='store_true', help='also print the operators that take longest')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--dtype', default='float32', choices=['float32', 'bfloat16', 'float16'], help='autocast type')
    parser.add_argument('--mmdet3d', type=Path, help="a clone of mmdetection3d, to time its projects/PETR decoder")
    parser.add_argument('--variant', help=argparse.SUPPRESS)  # child process: peak memory of one variant
    return parser.parse_args()


def rig(num: int, device: str) -> torch.Tensor:
    """lidar2img (1, num, 4, 4) of a plausible ring of cameras."""
    angles = torch.arange(num) * 2 * torch.pi / num
    axes = torch.stack((torch.stack((angles.cos(), angles.sin(), 0 * angles), -1),
                        torch.tensor([0.0, 0.0, -1.0]).expand(num, 3),
                        torch.stack((-angles.sin(), angles.cos(), 0 * angles), -1)), 1)
    cam2img = torch.tensor([[557.0, 0, 352], [0, 557, 128], [0, 0, 1]])
    lidar2img = torch.eye(4).repeat(num, 1, 1)
    lidar2img[:, :3, :3] = cam2img @ axes
    lidar2img[:, :3, 3] = torch.tensor([0.0, 100.0, 0.5])
    return lidar2img[None].to(device)


class Ours:
    """One training step of our decoder, rays and rotations included."""

    def __init__(self, encoding, args):
        torch.manual_seed(0)
        self.args = args
        path = ENCODINGS / f'{encoding}.py' if (ENCODINGS / f'{encoding}.py').exists() else encoding
        self.encoding = MODELS.build(Config.fromfile(path).encoding, default_args=dict(
            num_heads=HEADS, head_dim=DIMS // HEADS, num_layers=args.layers)).to(args.device)
        self.decoder = PETRDecoder(DIMS, args.layers, num_heads=HEADS, dropout=0.0).to(args.device)
        self.lidar2img = rig(args.cameras, args.device)
        tokens = args.cameras * FEATURES[0] * FEATURES[1]
        self.memory = torch.randn(1, tokens, DIMS, device=args.device, requires_grad=True)
        self.memory_pos = torch.randn(1, tokens, DIMS, device=args.device)
        self.query_pos = torch.randn(1, args.queries, DIMS, device=args.device)
        self.points = (torch.rand(1, args.queries, 3, device=args.device) - 0.5) * 100

    def __call__(self):
        rays = Rays.from_lidar2img(self.lidar2img, FEATURES, STRIDE)
        frame, absolute = self.encoding.prepare(rays), self.encoding.embed_keys(rays)
        position = self.memory_pos if absolute is None else self.memory_pos + absolute
        keys = [self.encoding.rotate_keys(frame, self.memory, layer) for layer in range(self.args.layers)]
        queries = self.encoding.rotate_queries(self.points)
        self.decoder(torch.zeros_like(self.query_pos), self.query_pos, self.memory, position, queries,
                     keys).float().sum().backward()


class MMDet3D:
    """One training step of the decoder in mmdetection3d's projects/PETR, at the same sizes."""

    def __init__(self, args):
        sys.path.insert(0, str(args.mmdet3d.resolve()))
        import projects.PETR.petr  # noqa: F401  registers it
        from mmdet3d.registry import MODELS
        from mmengine.registry import init_default_scope
        init_default_scope('mmdet3d')
        torch.manual_seed(0)
        layer = dict(
            type='PETRTransformerDecoderLayer', feedforward_channels=2048, ffn_dropout=0.0, with_cp=False,
            operation_order=('self_attn', 'norm', 'cross_attn', 'norm', 'ffn', 'norm'),
            attn_cfgs=[dict(type=kind, embed_dims=DIMS, num_heads=8, attn_drop=0.0)
                       for kind in ('MultiheadAttention', 'PETRMultiheadAttention')])
        self.transformer = MODELS.build(dict(type='PETRTransformer', decoder=dict(
            type='PETRTransformerDecoder', return_intermediate=True, num_layers=args.layers,
            transformerlayers=layer))).to(args.device)
        shape = (1, args.cameras, DIMS, *FEATURES)
        self.memory = torch.randn(shape, device=args.device, requires_grad=True)
        self.memory_pos = torch.randn(shape, device=args.device)
        self.mask = torch.zeros(1, args.cameras, *FEATURES, dtype=torch.bool, device=args.device)
        self.query_pos = torch.randn(args.queries, DIMS, device=args.device)

    def __call__(self):
        self.transformer(self.memory, self.mask, self.query_pos, self.memory_pos)[0].float().sum().backward()


def build(name, args):
    return MMDet3D(args) if name == 'mmdet3d' else Ours(name, args)


def step(run, args):
    with torch.autocast(args.device.split(':')[0], getattr(torch, args.dtype), enabled=args.dtype != 'float32'):
        run()
    if args.device.startswith('cuda'):
        torch.cuda.synchronize()


def resident(field: str) -> int:
    """Bytes of this process from /proc: VmRSS now, VmHWM at the peak."""
    return int(re.search(rf'{field}:\s+(\d+) kB', Path('/proc/self/status').read_text())[1]) * 1024


def peak_memory(args) -> int:
    """Bytes that two steps need on top of parameters and inputs; on CPU the growth of the process."""
    run = build(args.variant, args)
    if args.device.startswith('cuda'):
        before = torch.cuda.memory_allocated()
        step(run, args), step(run, args)
        return torch.cuda.max_memory_allocated() - before
    Path('/proc/self/clear_refs').write_text('5')  # forget the peak of imports and set-up
    before = resident('VmRSS')
    step(run, args), step(run, args)
    return resident('VmHWM') - before


def main():
    args = parse_args()
    if args.variant:
        print(json.dumps(peak_memory(args)))
        return
    names = ['none', *args.encodings, *(['mmdet3d'] if args.mmdet3d else [])]
    runs = {name: build(name, args) for name in names}
    for run in runs.values():
        step(run, args)
    # CPU seconds of this process: other processes on the machine do not count.
    clock = time.perf_counter if args.device.startswith('cuda') else time.process_time
    times = {name: [] for name in names}
    for _ in track_iter_progress(list(range(args.repeats))):
        for name, run in runs.items():
            start = clock()
            step(run, args)
            times[name].append(clock() - start)
    if args.profile:
        for name, run in runs.items():
            with torch.profiler.profile() as profile:
                step(run, args)
            print(f'\n{name}\n{profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=15)}')
    del runs
    tokens = args.cameras * FEATURES[0] * FEATURES[1]
    # glibc gives every tensor pages of its own: what counts are tensors, as on a GPU, and not the holes of a heap.
    environment = dict(os.environ, MALLOC_MMAP_THRESHOLD_='65536')
    print(f'\n{args.queries} queries x {tokens} tokens x {args.layers} layers, forward '
          f'+ backward, {args.device}, {args.dtype}, {torch.get_num_threads()} threads, torch {torch.__version__}, '
          f'median of {args.repeats} in alternation; ratio: median (min..max) of the pairs')
    memory = {}
    for name in names:
        command = [sys.executable, __file__, *sys.argv[1:], '--variant', name]
        memory[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True,
                                                 env=environment).stdout.splitlines()[-1])
    for name in names:
        ratios = [t / base for t, base in zip(times[name], times['none'])]
        print(f'{name:16} {statistics.median(times[name]):7.3f} s   x {statistics.median(ratios):.3f} '
              f'({min(ratios):.3f}..{max(ratios):.3f})   peak memory {memory[name] / 2**20:6.0f} MiB '
              f'x {memory[name] / memory["none"]:.3f}')


if __name__ == '__main__':
    main()
