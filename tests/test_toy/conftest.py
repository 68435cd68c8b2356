"""Small toy sets, made once per run."""
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from georope.toy import EDGE_CASES, make_toy_nuscenes
from georope.toy.options import ToyOptions

SMALL = dict(scenes=(1, 1), samples_per_scene=3, image_size=(90, 160), progress=False)


class ToySet(SimpleNamespace):
    """A toy set: its root, its options, its tables by name."""

    @classmethod
    def load(cls, root: Path):
        options = json.loads((root / 'toy_options.json').read_text())
        del options['generator']
        tables = {f.stem: json.loads(f.read_text()) for f in (root / 'v1.0-mini').iterdir()}
        return cls(root=root, options=ToyOptions(**options), **tables)


@pytest.fixture(scope='session')
def toy(tmp_path_factory) -> ToySet:
    """One training and one validation scene, three frames each."""
    return ToySet.load(make_toy_nuscenes(tmp_path_factory.mktemp('toy') / 'set', **SMALL))


@pytest.fixture(scope='session')
def edge_toy(tmp_path_factory) -> ToySet:
    """All edge cases at once, in two training scenes and one validation scene of four frames, one camera."""
    options = dict(SMALL, scenes=(2, 1), samples_per_scene=4, num_cameras=1, edge_cases=tuple(EDGE_CASES))
    return ToySet.load(make_toy_nuscenes(tmp_path_factory.mktemp('edge') / 'set', **options))
