"""tools/benchmark_toy.py on runs that are finished, and its table."""
import json
import sys

import pytest
import torch
from launching import load

NAMES = ('nd_score', 'mean_ap', 'trans_err', 'scale_err', 'orient_err', 'vel_err', 'attr_err')


@pytest.fixture
def runs(tmp_path):
    for seed in (0, 1):
        run = tmp_path / f'runs/petr_toy_4e_seed{seed}'
        run.mkdir(parents=True)
        shared = torch.zeros(3, 1000)
        torch.save(dict(state_dict={'d0.weight': shared, 'd1.weight': shared, 'bn.running_mean': torch.zeros(9)}),
                   run / 'epoch_4.pth')
        summary = dict(zip(NAMES, torch.arange(7).div(10).add(seed).tolist()))
        detection = {key: summary.pop(key) for key in NAMES[:2]}
        (run / 'metrics_summary.json').write_text(json.dumps(dict(detection, tp_errors=summary)))
        (run / 'tracking_metrics_summary.json').write_text(json.dumps(dict(amota=0.5, vel_err='not this one')))
    return tmp_path


def test_finished_runs_are_read_not_repeated(runs, capsys, monkeypatch):
    (runs / 'results.json').write_text(json.dumps({'8 epochs': {'petr_toy': {'0': {'NDS': 1}}}}))
    tool = load('benchmark_toy')

    def run(*options):
        monkeypatch.setattr(sys, 'argv', ['benchmark_toy', 'petr_toy', '--epochs', '4', '--work-dirs', str(
            runs / 'runs'), '--out', str(runs / 'results.json'), *options])
        tool.main()
        return capsys.readouterr().out
    assert '| `petr_toy` | 1 | 0.000 | 0.100 |' in run('--seeds', '0')
    monkeypatch.setattr(tool, 'speed', lambda *_: {'petr_toy': dict(median=1.0, least=0.9, greatest=1.25)})
    assert '1.000 (0.900..1.250)' in run('--speed', '3')
    *_, row = run('--seeds', '0', '1').strip().splitlines()
    assert row.startswith('| `petr_toy` | 2 | 0.500 ± 0.707 | 0.600 ± 0.707 |') and row.endswith('| 0.00 | 1.00 |')
    stored = json.loads((runs / 'results.json').read_text())
    assert stored['8 epochs'] == {'petr_toy': {'0': {'NDS': 1}}}
    numbers = stored['4 epochs']['petr_toy']['1']
    assert numbers['mAVE'] == pytest.approx(1.5) and numbers['AMOTA'] == 0.5
    assert numbers['M parameters'] == 0.003  # shared weights once, statistics not
