"""The options of a toy set: checked once, and saved beside the data."""
from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

# Bumped whenever the same options would give other files, so that an old set is not taken for a new one.
GENERATOR = 5

# The devkit's own splits (nuscenes.utils.splits), in its order; a test compares them with the devkit.
MINI_TRAIN = ('scene-0061', 'scene-0553', 'scene-0655', 'scene-0757', 'scene-0796', 'scene-1077', 'scene-1094',
              'scene-1100')
MINI_VAL = ('scene-0103', 'scene-0916')

EDGE_CASES = {
    'empty_frame': 'the second frame of every scene shows no object and has no annotation',
    'single_observation': 'one pedestrian per scene exists in the first frame only: its velocity is NaN',
    'zero_points': 'one car per scene stands in a closed garage: annotated, no LiDAR point, no visible pixel',
    'single_frame_scene': 'the last training scene (the last scene, without training scenes) has one frame',
    'time_gap': 'the last frame of every scene comes 2 s after the one before instead of 0.5 s',
    'far_origin': 'map coordinates as in UTM: 500 km east, 5400 km north, where float32 steps are 0.5 m',
}
_MIN_SAMPLES = {'empty_frame': 3, 'single_observation': 2, 'time_gap': 2}
MAX_CAMERAS = 12


@dataclass(frozen=True)
class ToyOptions:
    """Options of a toy set; see :func:`georope.toy.make_toy_nuscenes` for their meaning."""

    scenes: tuple[int, int] = (8, 2)
    samples_per_scene: int = 40
    image_size: tuple[int, int] = (225, 400)
    seed: int = 0
    num_cameras: int = 6
    edge_cases: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ('scenes', 'image_size'):
            value = getattr(self, name)
            if len(value) != 2 or not all(isinstance(v, int) for v in value):
                raise ValueError(f'{name} must be two integers, not {value!r}')
            object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, 'edge_cases', tuple(sorted(set(self.edge_cases))))
        train, val = self.scenes
        if not (0 <= train <= len(MINI_TRAIN) and 0 <= val <= len(MINI_VAL) and train + val > 0):
            raise ValueError(f'scenes must be (train, val) with at most {len(MINI_TRAIN)} and {len(MINI_VAL)} scenes, '
                             f'the names of the devkit\'s mini splits, not {self.scenes}. '
                             'For more data raise samples_per_scene.')
        if self.samples_per_scene < 1:
            raise ValueError(f'samples_per_scene must be at least 1, not {self.samples_per_scene}')
        if min(self.image_size) < 32:
            raise ValueError(f'image_size (height, width) must be at least 32 x 32, not {self.image_size}')
        if not 1 <= self.num_cameras <= MAX_CAMERAS:
            raise ValueError(f'num_cameras must be 1 to {MAX_CAMERAS}, not {self.num_cameras}')
        if self.seed < 0:
            raise ValueError(f'seed must not be negative, got {self.seed}')
        for case in self.edge_cases:
            if case not in EDGE_CASES:
                raise ValueError(f'unknown edge case {case!r}; known: {", ".join(EDGE_CASES)}')
            if self.samples_per_scene < _MIN_SAMPLES.get(case, 1):
                raise ValueError(f'edge case {case!r} needs samples_per_scene >= {_MIN_SAMPLES[case]}, '
                                 f'got {self.samples_per_scene}')

    @property
    def scene_names(self) -> tuple[str, ...]:
        """Names of the scenes made, training scenes first."""
        return MINI_TRAIN[:self.scenes[0]] + MINI_VAL[:self.scenes[1]]

    def num_samples(self, scene_name: str) -> int:
        """Key frames of one scene."""
        single = (MINI_TRAIN[:self.scenes[0]] or self.scene_names)[-1]
        return 1 if 'single_frame_scene' in self.edge_cases and scene_name == single else self.samples_per_scene

    def to_json(self) -> str:
        return json.dumps(dict(generator=GENERATOR, **asdict(self)), indent=1)

    def matches(self, path: Path) -> bool:
        """Whether the file at ``path`` was written by :meth:`to_json` of equal options."""
        return json.loads(path.read_text()) == json.loads(self.to_json())
