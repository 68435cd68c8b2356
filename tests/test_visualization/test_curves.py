"""Training curves from logs as mmengine writes them."""
import json
import runpy
import sys
from pathlib import Path

import cv2
import pytest

from georope.visualization.curves import Curves, chosen_keys, draw_curves

TOOL = Path(__file__).resolve().parents[2] / 'tools' / 'plot_log.py'


def train(iteration: int, loss: float, per_epoch: int | None = 10, **scalars) -> dict:
    epoch = {} if per_epoch is None else dict(epoch=(iteration - 1) // per_epoch + 1)
    return {'lr': .1, 'loss': loss, 'loss_cls': loss / 2, 'd0.loss_cls': loss / 3, 'time': 1., **scalars, **epoch,
            'iter': iteration, 'step': iteration}


def val(step: int, score: float) -> dict:
    return {'nuscenes/NDS': score, 'nuscenes/car_AP': .5, 'time': .1, 'step': step}


def write(work_dir: Path, *runs: list) -> Path:
    for i, rows in enumerate(runs):
        folder = work_dir / f'2026010{i}_000000' / 'vis_data'
        folder.mkdir(parents=True)
        (folder / 'scalars.json').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return work_dir


def test_epochs_that_were_done_again_count_once(tmp_path):
    """Interrupted in the third epoch of 10 iterations, logged every fifth: the resumed run begins that epoch anew."""
    first = [train(5, 9), train(10, 8), val(1, .1), train(15, 7), train(20, 6), val(2, .2), train(25, 99)]
    curves = Curves(write(tmp_path / 'run', first, [train(25, 5), train(30, 4), val(3, .3)]))
    assert curves.name == 'run' and curves.resumed == [25]
    assert curves.values['loss'] == ([5, 10, 15, 20, 25, 30], [9, 8, 7, 6, 5, 4])
    assert curves.values['nuscenes/NDS'] == ([10, 20, 30], [.1, .2, .3])


def test_resumed_from_a_checkpoint_before_the_last(tmp_path):
    first = [train(10, 8), val(1, .1), train(15, 99), train(18, 98), train(20, 97), val(2, .9)]
    curves = Curves(write(tmp_path, first, [train(16, 7), train(20, 6), val(2, .2)]))
    assert curves.values['loss'] == ([10, 16, 20], [8, 7, 6])  # 15 is of the epoch that was left
    assert curves.values['nuscenes/NDS'] == ([10, 20], [.1, .2])


def test_a_run_from_the_start_replaces_those_before_it(tmp_path):
    curves = Curves(write(tmp_path, [train(5, 99), train(15, 98)], [train(15, 97)], [train(5, 9), train(10, 8)]))
    assert curves.values['loss'] == ([5, 10], [9, 8]) and curves.resumed == []


def test_trainings_without_epochs(tmp_path):
    """Joined by iteration; scores are logged with the epoch (0) or the iteration, by LoggerHook's options."""
    first = [train(5, 9, None), train(10, 8, None), val(12, .1), train(15, 99, None)]
    curves = Curves(write(tmp_path, first, [train(15, 7, None), train(20, 6, None), val(0, .2)]))
    assert curves.values['loss'] == ([5, 10, 15, 20], [9, 8, 7, 6]) and curves.resumed == [15]
    assert curves.values['nuscenes/NDS'] == ([12, 20], [.1, .2])


def test_a_cut_off_last_line_is_a_running_training_and_other_damage_an_error(tmp_path):
    write(tmp_path, [train(5, 9)])
    log, = tmp_path.glob('*/vis_data/scalars.json')
    whole = log.read_text()
    log.write_text(whole + '{"lr": 0.0')
    assert Curves(tmp_path).values['loss'] == ([5], [9])
    log.write_text('{"lr": 0.0\n' + whole)
    with pytest.raises(ValueError, match=r'scalars\.json, line 1 is not JSON'):
        Curves(tmp_path)
    with pytest.raises(FileNotFoundError, match='not the work dir of a training'):
        Curves(tmp_path / 'other')


def test_keys(tmp_path):
    curves = [Curves(write(tmp_path, [train(5, 9), val(1, .1)]))]
    assert chosen_keys(curves) == ['loss', 'loss_cls', 'lr', 'nuscenes/NDS']
    assert chosen_keys(curves, ['d0.*', '*_AP']) == ['d0.loss_cls', 'nuscenes/car_AP']
    with pytest.raises(ValueError, match="nothing logged fits 'grad_norm', but: d0.loss_cls, loss"):
        chosen_keys(curves, ['loss', 'grad_norm'])


def test_panels_hold_the_values_of_each_training_and_mark_what_is_not_finite(tmp_path):
    trainings = [Curves(write(tmp_path / 'a', [train(5, 9), train(10, float('nan'))], [train(15, 8)])),
                 Curves(write(tmp_path / 'b', [train(5, 3), val(1, .1)]))]
    figure = draw_curves(trainings, ['loss', 'nuscenes/NDS'])
    loss, score = figure.axes
    lines = {tuple(line.get_xdata()): line for line in loss.lines}
    assert list(lines[5, 10, 15].get_ydata())[::2] == [9, 8] and list(lines[5,].get_ydata()) == [3]
    assert lines[10,].get_marker() == 'x' and loss.get_title() == 'loss'
    assert [list(line.get_ydata()) for line in score.lines if len(line.get_ydata()) == 1] == [[.1]]
    assert [text.get_text() for text in figure.legends[0].texts] == ['a', 'b', 'resumed']


def test_tool(tmp_path, monkeypatch, capsys):
    """Two work dirs of one name are told apart by their paths."""
    one, two = write(tmp_path / '1/run', [train(5, float('inf'))]), write(tmp_path / '2/run', [train(5, 3), val(1, .1)])
    out = tmp_path / 'new' / 'curves.png'
    monkeypatch.setattr(sys, 'argv', ['plot_log.py', str(one), str(two), '--out', str(out)])
    runpy.run_path(str(TOOL), run_name='__main__')
    said = capsys.readouterr().out
    assert f'{two}, last values: loss 3, loss_cls 1.5, lr 0.1, nuscenes/NDS 0.1\n' in said
    assert 'loss is not finite at 1 iterations, first 5' in said
    height, width = cv2.imread(str(out)).shape[:2]
    assert width > height > 300 and list(out.parent.iterdir()) == [out]
