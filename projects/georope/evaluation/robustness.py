"""Scores against the severity of a perturbation: saved one by one, and shown as a table."""
import hashlib
import json
import math
import os
from collections.abc import Sequence
from typing import NamedTuple, Optional

from mmengine.config import Config

from georope.datasets.transforms.perturb import KINDS
from georope.files import atomic_open

MEASURES = ('NDS', 'mAP', 'AMOTA')
NOT_THE_MODEL = ('launcher', 'work_dir', 'experiment_name')


class Setting(NamedTuple):
    """What is scored. Severity 0 is the same for all kinds: ``kind`` is then '', ``seed`` 0."""
    model: str  # a fingerprint of config and weights
    kind: str
    severity: float
    seed: int


def settings_of(model: str, kinds: dict[str, Sequence[float]], seed: int) -> list[Setting]:
    """All settings of a model, each once, severity 0 first.

    Args:
        model: Its fingerprint.
        kinds: {kind: severities}.
        seed: Of the perturbations' draws.
    """
    clean = Setting(model, '', 0.0, 0)
    return [clean, *(Setting(model, kind, float(severity), seed)
                     for kind, severities in kinds.items() for severity in dict.fromkeys(severities) if severity)]


def fingerprint(cfg: Config, checkpoint: str) -> str:
    """12 hex digits that change with the config (data root and options included) and with the weights.

    Of a checkpoint that is an address, the address counts.
    """
    content = {key: value for key, value in cfg.to_dict().items() if key not in NOT_THE_MODEL}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode())
    if '://' in checkpoint:
        digest.update(checkpoint.encode())
    else:
        with open(os.path.expanduser(checkpoint), 'rb') as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]


def perturb(cfg: Config, kind: str, severity: float, seed: int) -> None:
    """Put the perturbation into the test pipeline of a config, before images are read.

    Raises:
        ValueError: The pipeline does not read images with georope.LoadCameraImages.
    """
    pipeline = cfg.test_dataloader.dataset.get('pipeline') or []
    names = [step['type'].split('.')[-1] for step in pipeline]
    if names.count('LoadCameraImages') != 1:
        raise ValueError(f'{cfg.filename}: test_dataloader.dataset.pipeline has the steps {names}; images can be '
                         'perturbed where georope.LoadCameraImages reads them, once.')
    pipeline.insert(names.index('LoadCameraImages'),
                    dict(type='georope.PerturbCameras', kind=kind, severity=severity, seed=seed))


class Scores:
    """Metrics by setting, in a JSON file that is written atomically.

    Args:
        path: The file, {"results": [{model, kind, severity, seed, config, checkpoint, metrics}]}; what it holds is
            there again.
    """

    def __init__(self, path: str) -> None:
        self.path, self._records = path, {}
        if os.path.exists(path):
            with open(path, encoding='utf-8') as file:
                for record in json.load(file)['results']:
                    self._records[Setting(*(record[key] for key in Setting._fields))] = record

    def __contains__(self, setting: Setting) -> bool:
        return setting in self._records

    def add(self, setting: Setting, metrics: dict, config: str, checkpoint: str) -> None:
        """Keep the metrics of a setting under their names without prefix, e.g. NDS.

        Raises:
            ValueError: None of NDS, mAP, AMOTA is among them.
        """
        plain = {key.split('/')[-1]: float(value) for key, value in metrics.items()}
        if not any(name in plain for name in MEASURES):
            raise ValueError(f'{config}: test_evaluator gives {list(plain)}, none of {MEASURES}; robustness is what '
                             'georope.NuScenesMetric says, without format_only.')
        plain = {key: value if math.isfinite(value) else None for key, value in plain.items()}
        self._records[setting] = dict(setting._asdict(), config=config, checkpoint=checkpoint, metrics=plain)

    def save(self) -> None:
        with atomic_open(self.path) as file:
            json.dump(dict(results=list(self._records.values())), file, indent=1, allow_nan=False)

    def value(self, setting: Setting, measure: str) -> Optional[float]:
        """A measure of a setting; None where it is unknown."""
        return self._records[setting]['metrics'].get(measure)

    def measures(self, models: Sequence[str]) -> list[str]:
        """Those of NDS, mAP and AMOTA that any of these models was scored by."""
        return [name for name in MEASURES if any(
            name in record['metrics'] for setting, record in self._records.items() if setting.model in models)]


def curve(kind: str, severities: Sequence[float], seed: int, model: str) -> list[Setting]:
    """The settings of one curve, by severity."""
    return sorted(settings_of(model, {kind: severities}, seed), key=lambda setting: setting.severity)


def severity_table(scores: Scores, models: dict[str, str], kinds: dict[str, Sequence[float]], seed: int) -> str:
    """A Markdown table per kind: a row per severity, for each model its measures.

    Args:
        scores: Has all the settings.
        models: {name: fingerprint}.
        kinds: {kind: severities}.
        seed: Of the perturbations' draws.
    """
    measures = scores.measures(list(models.values()))
    columns = [(name, measure) for name in models for measure in measures]
    lines = []
    for kind, severities in kinds.items():
        lines += [f'### {kind.replace("_", " ")}', '',
                  ' | '.join([f'| {KINDS[kind].unit}', *(f'{name} {measure}' for name, measure in columns)]) + ' |',
                  '|---|' + '---:|' * len(columns)]
        rows = {name: curve(kind, severities, seed, model) for name, model in models.items()}
        for i, severity in enumerate(setting.severity for setting in next(iter(rows.values()))):
            values = [scores.value(rows[name][i], measure) for name, measure in columns]
            cells = ['-' if value is None else f'{value:.3f}' for value in values]
            lines.append(' | '.join([f'| {severity:g}', *cells]) + ' |')
        lines.append('')
    return '\n'.join(lines)
