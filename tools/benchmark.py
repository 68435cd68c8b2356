#!/usr/bin/env python
"""Cost of encodings: time and peak memory of each, against the first, in alternation. Prints a Markdown table.

    tools/benchmark.py                                  # the decoder alone, forward + backward
    tools/benchmark.py --encodings gta my.py --profile  # others, and where the time goes
    tools/benchmark.py --mmdet3d ../mmdetection3d       # the same sizes through its projects/PETR decoder too
    tools/benchmark.py --train --amp float16            # whole training steps of the R50 recipe, optimizer included
    tools/benchmark.py --train CONFIG... --batch 1 --cameras 2 --image 64 160 --queries 30 --layers 1   # a CPU's size

Only the ratios mean something: times depend on the machine and on what else runs there. Training steps see random
images and boxes and start from random weights.
"""
import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import torch
from mmdet3d.structures import Det3DDataSample
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.structures import InstanceData
from mmengine.utils import track_iter_progress

from georope.engine.launch import build_model
from georope.models.box_code import to_lidar_boxes
from georope.models.decoder import PETRDecoder
from georope.registry import MODELS
from georope.rope import Rays

DIMS, HEADS, STRIDE, OBJECTS, FRAMES = 256, 8, 16, 30, 8
WARM_UP = 12  # on a GPU: with loss scaling, the first steps overflow and leave the optimizer out
CONFIGS = Path(__file__).resolve().parents[1] / 'configs'
TRAINED = [str(CONFIGS / name) for name in (
    'petr/petr_r50_8xb2-24e_nus-3d.py', 'petr/petr-urope_r50_8xb2-24e_nus-3d.py',
    'petr/petr-worldrope_r50_8xb2-24e_nus-3d.py', 'petr/petr-worldrope-mixed_r50_8xb2-24e_nus-3d.py',
    'streampetr/streampetr_r50_8xb2-seq-24e_nus-3d.py', 'streampetr/streampetr-urope_r50_8xb2-seq-24e_nus-3d.py')]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--encodings', nargs='+', default=['urope', 'urope-mixed', 'worldrope', 'worldrope-mixed'],
                        help='decoder: names in configs/_base_/encodings, or config files with an `encoding`')
    parser.add_argument('--mmdet3d', type=Path, help="decoder: a clone of mmdetection3d, to time its projects/PETR's")
    parser.add_argument('--train', nargs='*', metavar='CONFIG', help='training steps of configs; default: PETR R50 '
                        'without a code, with URoPE, WorldRoPE (axial, mixed), StreamPETR R50 without and with URoPE')
    parser.add_argument('--batch', type=int, help='samples; default: 1, in training the batch size of the config')
    parser.add_argument('--queries', type=int, help='default: 900, in training those of the config')
    parser.add_argument('--layers', type=int, help='decoder layers; default: 6, in training those of the config')
    parser.add_argument('--cameras', type=int, default=6)
    parser.add_argument('--image', type=int, nargs=2, default=(256, 704), metavar=('HEIGHT', 'WIDTH'))
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--profile', action='store_true', help='also print the operators that take longest')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--amp', choices=['bfloat16', 'float16'], help='mixed precision; default: float32')
    parser.add_argument('--variant', help=argparse.SUPPRESS)  # child process: peak memory of one variant
    args = parser.parse_args()
    if args.train is None:
        args.batch, args.queries, args.layers = args.batch or 1, args.queries or 900, args.layers or 6
    args.cuda = args.device.startswith('cuda')
    return args


def mixed(args):
    """The autocast context that was asked for."""
    dtype = None if args.amp is None else getattr(torch, args.amp)
    return torch.autocast(args.device.split(':')[0], dtype, enabled=dtype is not None)


def grid(args) -> tuple[int, int]:
    """Rows and columns of a feature map."""
    return tuple(length // STRIDE for length in args.image)


def num_tokens(args) -> int:
    return args.cameras * grid(args)[0] * grid(args)[1]


def rig(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """lidar2img (num, 4, 4) of a plausible ring of cameras, and their cam2img."""
    angles = torch.arange(num) * 2 * torch.pi / num
    axes = torch.stack((torch.stack((angles.cos(), angles.sin(), 0 * angles), -1),
                        torch.tensor([0.0, 0.0, -1.0]).expand(num, 3),
                        torch.stack((-angles.sin(), angles.cos(), 0 * angles), -1)), 1)
    cam2img = torch.eye(4).repeat(num, 1, 1)
    cam2img[:, :3, :3] = torch.tensor([[557.0, 0, 352], [0, 557, 128], [0, 0, 1]])
    lidar2img = torch.eye(4).repeat(num, 1, 1)
    lidar2img[:, :3, :3] = cam2img[:, :3, :3] @ axes
    lidar2img[:, :3, 3] = torch.tensor([0.0, 100.0, 0.5])
    return lidar2img, cam2img


class Decoder:
    """Forward and backward pass of our decoder, rays and rotations included."""

    def __init__(self, encoding, args):
        torch.manual_seed(0)
        self.args = args
        path = CONFIGS / f'_base_/encodings/{encoding}.py'
        path = path if path.exists() else encoding
        self.encoding = MODELS.build(Config.fromfile(path).encoding, default_args=dict(
            num_heads=HEADS, head_dim=DIMS // HEADS, num_layers=args.layers)).to(args.device)
        self.decoder = PETRDecoder(DIMS, args.layers, num_heads=HEADS, dropout=0.0).to(args.device)
        self.lidar2img = rig(args.cameras)[0].expand(args.batch, -1, -1, -1).to(args.device)
        shape = (args.batch, num_tokens(args), DIMS)
        self.memory = torch.randn(shape, device=args.device, requires_grad=True)
        self.memory_pos = torch.randn(shape, device=args.device)
        self.query_pos = torch.randn(args.batch, args.queries, DIMS, device=args.device)
        self.points = (torch.rand(args.batch, args.queries, 3, device=args.device) - 0.5) * 100

    def __call__(self):
        with mixed(self.args):
            rays = Rays.from_lidar2img(self.lidar2img, grid(self.args), STRIDE)
            frame, absolute = self.encoding.prepare(rays), self.encoding.embed_keys(rays)
            position = self.memory_pos if absolute is None else self.memory_pos + absolute
            keys = [self.encoding.rotate_keys(frame, self.memory, layer) for layer in range(self.args.layers)]
            queries = self.encoding.rotate_queries(self.points)
            out = self.decoder(torch.zeros_like(self.query_pos), self.query_pos, self.memory, position, queries, keys)
        out.float().sum().backward()


class MMDet3D:
    """Forward and backward pass of the decoder in mmdetection3d's projects/PETR, at the same sizes."""

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
        self.args = args
        shape = (args.batch, args.cameras, DIMS, *grid(args))
        self.memory = torch.randn(shape, device=args.device, requires_grad=True)
        self.memory_pos = torch.randn(shape, device=args.device)
        self.mask = torch.zeros(args.batch, args.cameras, *grid(args), dtype=torch.bool, device=args.device)
        self.query_pos = torch.randn(args.queries, DIMS, device=args.device)

    def __call__(self):
        with mixed(self.args):
            out = self.transformer(self.memory, self.mask, self.query_pos, self.memory_pos)[0]
        out.float().sum().backward()


class Training:
    """Training steps of a config as mmengine runs them: preprocessor, losses, backward pass, optimizer."""

    def __init__(self, config, args):
        torch.manual_seed(0)
        head, decoder = 'model.pts_bbox_head.', 'model.pts_bbox_head.decoder.num_layers'
        options = {'model.img_backbone.init_cfg': None} | ({decoder: args.layers} if args.layers else {})
        if args.queries:
            options[f'{head}num_query'] = args.queries
            if 'Stream' in Config.fromfile(config).model.type:  # a quarter of the queries comes from memory
                carried = args.queries // 4
                options |= {f'{head}num_query': args.queries - carried, f'{head}memory_len': 4 * carried,
                            f'{head}topk_proposals': carried, f'{head}num_propagated': carried}
        cfg, self.model = build_model(config, options)
        self.model.init_weights()
        self.model.to(args.device).train()
        wrapper = cfg.optim_wrapper
        if args.amp and args.cuda:
            wrapper.update(type='AmpOptimWrapper', dtype=args.amp)
        else:  # mmengine's AMP wrapper refuses a CPU
            wrapper.type = 'OptimWrapper'
            wrapper.pop('loss_scale', None)
        self.wrapper = build_optim_wrapper(self.model, wrapper)
        self.args, self.batch = args, args.batch or cfg.train_dataloader.batch_size
        pin = args.cuda and cfg.train_dataloader.get('pin_memory', False)
        self.frames = cycle([self._frame(number, pin) for number in range(FRAMES)])

    def _frame(self, number, pin):
        """Frame ``number`` of a stream per sample, as the loader gives it, with random images and boxes."""
        images, samples = [], []
        lidar2img, cam2img = (matrices.double().numpy() for matrices in rig(self.args.cameras))
        size = torch.tensor(self.args.image[::-1])
        for i in range(self.batch):
            image = torch.randint(0, 256, (self.args.cameras, 3, *self.args.image), dtype=torch.uint8)
            images.append(image.pin_memory() if pin else image)
            samples.append(Det3DDataSample(metainfo=dict(
                token=f'{i}-{number}', scene_token=str(i), timestamp=0.5 * number, prev_exists=number > 0,
                ego_pose=torch.eye(4).double().numpy(), lidar2img=lidar2img, cam2img=cam2img,
                img_shape=[tuple(self.args.image)] * self.args.cameras)))
            boxes = (torch.rand(OBJECTS, 9) - 0.5) * torch.tensor([90, 90, 4, 0, 0, 0, 6, 8, 8])
            boxes[:, 3:6] = torch.tensor([4.5, 1.9, 1.7])
            samples[-1].gt_instances_3d = InstanceData(
                bboxes_3d=to_lidar_boxes(boxes), labels_3d=torch.arange(OBJECTS) % 10)
            samples[-1].gt_cameras = []
            for _ in range(self.args.cameras):
                labels = torch.arange(-(-OBJECTS // self.args.cameras)) % 10
                centres, extents = (torch.rand(len(labels), 2) * size for _ in range(2))
                corners = (centres - extents / 8, centres + extents / 8)
                samples[-1].gt_cameras.append(InstanceData(
                    bboxes=torch.cat([corner.clamp(min=0).minimum(size) for corner in corners], dim=1), labels=labels,
                    centers_2d=centres, depths=torch.full_like(centres[:, 0], 20)))
        return dict(inputs=dict(img=images), data_samples=samples)

    def __call__(self):
        data = self.model.data_preprocessor(next(self.frames), True)
        with self.wrapper.optim_context(self.model), mixed(self.args):
            losses = self.model(**data, mode='loss')
        self.wrapper.update_params(self.model.parse_losses(losses)[0])


def build(name, args):
    if args.train is not None:
        return Training(name, args)
    return MMDet3D(args) if name == 'mmdet3d' else Decoder(name, args)


def step(run, args):
    run()
    if args.cuda:
        torch.cuda.synchronize()


def resident(field: str) -> int:
    """Bytes of this process from /proc: VmRSS now, VmHWM at the peak."""
    return int(re.search(rf'{field}:\s+(\d+) kB', Path('/proc/self/status').read_text())[1]) * 1024


def peak_memory(run, args) -> int:
    """Bytes that steps need on top of parameters and inputs; on a CPU the growth of the process."""
    if args.cuda:
        before = torch.cuda.memory_allocated(args.device)
        for _ in range(WARM_UP):
            step(run, args)
        torch.cuda.reset_peak_memory_stats(args.device)
        step(run, args), step(run, args)
        return torch.cuda.max_memory_allocated(args.device) - before
    Path('/proc/self/clear_refs').write_text('5')  # forget the peak of imports and set-up
    before = resident('VmRSS')
    step(run, args), step(run, args)
    return resident('VmHWM') - before


def peak_memory_of_child(name: str) -> int:
    """``peak_memory`` in a fresh process. glibc gives every tensor pages of its own there: what counts are tensors, as
    on a GPU, and not the holes of a heap."""
    command = [sys.executable, __file__, *sys.argv[1:], '--variant', name]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=dict(
        os.environ, MALLOC_MMAP_THRESHOLD_='65536')).stdout.splitlines()[-1])


def table(names, times, memory, args) -> str:
    """In Markdown. Ratios are those of the pairs of one round, median (least to greatest)."""
    gpu = torch.cuda.get_device_name(args.device) if args.cuda else f'CPU, {torch.get_num_threads()} threads'
    what = f'{args.queries} queries x {num_tokens(args)} tokens x {args.layers} layers, forward + backward, batch '
    if args.train is not None:
        what = f'Training steps, {args.cameras} cameras of {args.image[0]} x {args.image[1]}, batch '
    batch = args.batch or Config.fromfile(names[0]).train_dataloader.batch_size
    lines = [f'{what}{batch}, {args.amp or "float32"}, {gpu}, torch {torch.__version__}, median of {args.repeats} in '
             'alternation; ratios to the first (range); memory on top of parameters and inputs:', '',
             '| | time | ratio | images/s | peak memory | ratio |', '|---|---|---|---|---|---|']
    for name in names:
        ratios = [t / base for t, base in zip(times[name], times[names[0]])]
        label, seconds = re.sub('_[0-9]+xb.*', '', Path(name).stem), statistics.median(times[name])
        lines.append(
            f'| {label} | {1000 * seconds:.1f} ms | {statistics.median(ratios):.3f} ({min(ratios):.3f} to '
            f'{max(ratios):.3f}) | {batch * args.cameras / seconds:.3g} | {memory[name] / 2**20:.0f} MiB | '
            f'{memory[name] / memory[names[0]]:.3f} |')
    return '\n'.join(lines)


def main():
    args = parse_args()
    MMLogger.get_current_instance().setLevel('ERROR')  # every parameter's learning rate and initialisation
    if args.variant:
        print(json.dumps(peak_memory(build(args.variant, args), args)))
        return
    names = ['none', *args.encodings, *(['mmdet3d'] if args.mmdet3d else [])]
    if args.train is not None:
        names = args.train or TRAINED
    if args.cuda:  # libraries take their workspaces once: not the first variant's
        step(build(names[0], args), args)
        gc.collect()
    runs, memory = {}, {}
    for name in names:
        runs[name] = build(name, args)
        if args.cuda:
            memory[name] = peak_memory(runs[name], args)
        step(runs[name], args)
    # CPU seconds of this process: other processes on the machine do not count.
    clock = time.perf_counter if args.cuda else time.process_time
    times = {name: [] for name in names}
    for _ in track_iter_progress(list(range(args.repeats)), file=sys.stderr):
        for name, run in runs.items():
            start = clock()
            step(run, args)
            times[name].append(clock() - start)
    if args.profile:
        for name, run in runs.items():
            with torch.profiler.profile() as profile:
                step(run, args)
            print(f'\n{name}\n{profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=15)}')
    del runs, run
    if not args.cuda:
        memory = {name: peak_memory_of_child(name) for name in names}
    print(f'\n{table(names, times, memory, args)}')


if __name__ == '__main__':
    main()
