"""Detectors as one graph: in tensors alone they are the model, whatever the encoding, and in onnxruntime as well."""
import importlib.util
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from shrunk_configs import CONFIGS, build

from georope.export import ExportedDetector, check, decode, made_up_frames, onnx_runner

SIZE, CAMERAS = (72, 96), 2  # padded to 96 x 96: the last row of tokens is padding
PETR = [*(f'petr/petr-{name}_r50_8xb2-24e' for name in (
    'gta', 'learned-depth', 'pluecker', 'prope', 'rayrope', 'urope', 'urope-hybrid', 'urope-mixed', 'worldrope',
    'worldrope-mixed')), 'petr/petr_r50_8xb2-24e', 'petr/petr-classic_vov-800x320_8xb1-24e',
    'ablations/petr-urope-bevtime_r50_8xb2-24e', 'ablations/petr-worldrope-boxquery_r50_8xb2-24e',
    'ablations/petr-worldrope-talking_r50_8xb2-24e']
STREAM = [f'streampetr/streampetr{name}_r50_8xb2-seq-24e' for name in (
    '', '-worldrope', '-urope-selfrope', '-worldrope-twoscales')]


def exported(name: str, **parts) -> tuple:
    model = build(CONFIGS / f'{name}_nus-3d.py', **parts).eval()
    return model, ExportedDetector(model, SIZE, CAMERAS)


def eager(detector: ExportedDetector, place: int = 0, change=lambda x: x):
    """The detector itself in place of a graph; ``change`` an input."""
    def run(*inputs):
        tensors = [torch.from_numpy(x) for x in inputs]
        tensors[place] = change(tensors[place])
        with torch.no_grad():
            return [x.numpy() for x in detector(*tensors)]
    return run


LOST = dict(lidar2img=lambda x: x + torch.eye(4).roll(1, 1), motion=lambda x: torch.eye(4), elapsed=lambda x: 0 * x,
            continued=lambda x: 0 * x + 1, memory_embedding=lambda x: 0 * x, memory_poses=lambda x: 0 * x)


@pytest.mark.parametrize('name', [*PETR, *STREAM])
def test_in_tensors_alone_it_is_the_model(name):
    """Geometry in float32, memory in the vehicle's frame: over a stream of 4 frames, the third of which starts anew."""
    model, detector = exported(name)
    frames = made_up_frames(SIZE, CAMERAS, 4)
    frames[2]['prev_exists'] = False
    found = check(detector, model, frames, eager(detector))
    assert found.logits < 1e-4 and found.boxes < 1e-3 and found.codes < 1e-4
    # Were calibration, motion or time lost on the way, it would show.
    for key, change in LOST.items():
        if key in detector.input_names:
            bad = check(detector, model, frames, eager(detector, detector.input_names.index(key), change))
            assert max(bad.logits, bad.codes, bad.boxes) > 1e-3, key


def test_onnxruntime_agrees(tmp_path: Path, capsys):
    """tools/export.py over five frames of a stream, with a choice of image tokens; it exits with 1 beyond limits."""
    onnx = pytest.importorskip('onnx', reason='needs onnx, onnxscript and onnxruntime')
    for name in ('onnxscript', 'onnxruntime'):
        pytest.importorskip(name, reason='needs onnx, onnxscript and onnxruntime')
    spec = importlib.util.spec_from_file_location('tool_export', CONFIGS.parent / 'tools/export.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    path, head = tmp_path / 'detector.onnx', 'model.pts_bbox_head'
    options = {f'{head}.decoder.num_layers': 1, 'model.img_roi_head.infer_ratio': 0.6, f'{head}.num_query': 20}
    argv = ['export', CONFIGS / 'toy/streampetr-worldrope_toy.py', '--out', path, '--image', *SIZE, '--cameras',
            CAMERAS, '--cfg-options', *(f'{key}={value}' for key, value in options.items())]
    with mock.patch.object(sys, 'argv', [str(part) for part in argv]), pytest.raises(SystemExit) as left:
        tool.main()
    row = capsys.readouterr().out.splitlines()[-1]
    assert left.value.code == 0 and row.startswith('| streampetr-worldrope_toy | '), row

    _, model = tool.drawn(str(CONFIGS / 'toy/streampetr-worldrope_toy.py'), options)
    detector, run = ExportedDetector(model.eval(), SIZE, CAMERAS), onnx_runner(path)
    graph = onnx.load(path)
    assert [value.name for value in graph.graph.input] == detector.input_names
    assert [value.name for value in graph.graph.output] == detector.output_names
    assert not any(node.domain for node in graph.graph.node)  # ONNX's own operators alone
    kinds = {value.type.tensor_type.elem_type for value in graph.graph.value_info}
    kinds |= {value.data_type for value in graph.graph.initializer}
    assert not kinds & {onnx.TensorProto.DOUBLE, onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128}

    logits, codes = run(*(x.numpy() for x in detector.example()))[:2]
    boxes, scores, labels = decode(logits, codes)
    expected = model.pts_bbox_head.bbox_coder.decode(torch.from_numpy(logits)[None], torch.from_numpy(codes)[None])[0]
    order = min(len(scores), len(expected[1]))
    assert order and np.allclose(np.sort(scores)[::-1][:order], expected[1][:order].numpy(), atol=1e-6)
    assert boxes.shape[1] == 9 and labels.max() < 10


def test_what_cannot_be_exported_says_so():
    with pytest.raises(ValueError, match='Linear cannot be exported: only georope.PETRHead'):
        model = torch.nn.Module()
        model.pts_bbox_head = torch.nn.Linear(1, 1)
        ExportedDetector(model, SIZE, CAMERAS)
