#!/usr/bin/env python
"""Time and memory of the evaluation of a whole split: detections (NDS) or tracks (AMOTA), as tools/test.py does it.

    tools/benchmark_evaluation.py DIR tracks                  # 6019 frames of 300 boxes, as many as val has
    tools/benchmark_evaluation.py DIR devkit --frames 400     # the devkit's own loop over classes and scores, of a part

DIR receives synthetic tables of the size of nuScenes val (150 scenes; 17 objects of the tracked classes per frame in
nuScenes' mix, most of them standing) and results with real-valued scores: objects moved, missed and broken in two, and
short false tracks of low score up to --boxes per frame. After the devkit's own loop ours runs too, and all numbers are
compared. Memory is the peak of the sum over all processes (proportional set size, once a second; Linux). The time on
other numbers of cores is an estimate from CPU seconds: what runs before and after the jobs, the start of a process, all
jobs divided by the cores, and the longest job of each kind.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from mmengine.logging import MMLogger
from nuscenes.eval.common.config import config_factory
from nuscenes.eval.tracking.evaluate import TrackingEval
from nuscenes.utils.splits import create_splits_scenes

from georope.datasets.tables import CATEGORIES
from georope.engine.peak import Peak
from georope.evaluation import evaluate_results, open_tables, tracking_table, write_results
from georope.evaluation.tracking_eval import FrameSetTracking

VERSION = 'v1.0-trainval'
# Of each tracked class: objects per frame (val, as the devkit counts them), share of all boxes, size in m, range in m.
CLASSES = dict(car=(9.7, .45, (1.9, 4.6, 1.7), 50), pedestrian=(4.2, .25, (.7, .7, 1.8), 40),
               truck=(1.6, .11, (2.5, 7, 2.8), 50), trailer=(.4, .05, (2.9, 12, 3.9), 50),
               bus=(.35, .04, (2.9, 11, 3.5), 50), motorcycle=(.33, .05, (.8, 2.1, 1.5), 40),
               bicycle=(.33, .05, (.6, 1.7, 1.3), 40))
NAMES = list(CLASSES)
LENGTH = 18  # mean number of frames of an object
STEP = .5  # s


class Scene:
    """Objects and results of one scene, all in the global frame, m."""

    def __init__(self, rng: np.random.Generator, frames: int, boxes: int) -> None:
        self.rng, self.frames = rng, frames
        self.ego = rng.uniform(300, 2000, 2) + np.outer(np.arange(frames) * STEP, rng.uniform(-8, 8, 2))
        self.objects, self.results = [], [[] for _ in range(frames)]
        for label, (count, *_) in enumerate(CLASSES.values()):
            for _ in range(rng.poisson(count * 1.35 * frames / LENGTH)):  # some leave the range or have no point
                self._object(label)
        self._false_tracks(boxes)

    def _position(self, label: int, frame: int) -> np.ndarray:
        distance, angle = self.rng.uniform(3, CLASSES[NAMES[label]][3]), self.rng.uniform(0, 2 * np.pi)
        return self.ego[frame] + distance * np.array([np.cos(angle), np.sin(angle)])

    def _object(self, label: int) -> None:
        rng, length = self.rng, min(self.frames, 2 + self.rng.poisson(LENGTH - 2))
        times = np.arange(length) + rng.integers(self.frames - length + 1)
        velocity = rng.normal(0, 5, 2) * (rng.uniform() < .3)
        positions = self._position(label, times[length // 2]) + np.outer((times - times[length // 2]) * STEP, velocity)
        self.objects.append((label, times, positions, velocity))
        if rng.uniform() > .95:
            return
        score, self._id = rng.beta(2, 3), self._next()
        for frame, position in zip(times, positions):
            if rng.uniform() < .03:
                score, self._id = rng.beta(2, 3), self._next()
            if rng.uniform() < .93:
                self.results[frame].append((label, position + rng.normal(0, .6, 2), velocity + rng.normal(0, .3, 2),
                                            float(np.clip(score + rng.normal(0, .08), .01, 1)), self._id))

    def _false_tracks(self, boxes: int) -> None:
        rng, alive, shares = self.rng, [], np.array([share for _, share, *_ in CLASSES.values()])
        for frame, results in enumerate(self.results):
            alive = [track for track in alive if rng.uniform() < .6]
            while len(alive) + len(results) < boxes:
                label = int(rng.choice(len(NAMES), p=shares))
                near = [box[1] for box in results if box[0] == label] if rng.uniform() < .4 else []
                position = near[rng.integers(len(near))] + rng.normal(0, 3, 2) if near else self._position(label, frame)
                alive.append((label, position, rng.normal(0, .5, 2), .6 * rng.beta(1, 6), self._next()))
            room = boxes - len(results)
            alive = alive[:room]
            results += [(label, position + rng.normal(0, .4, 2), velocity, float(score * rng.uniform(.7, 1.3)), name)
                        for label, position, velocity, score, name in alive]

    def _next(self) -> int:
        self.count = getattr(self, 'count', 0) + 1
        return self.count


def rows(token: str, results: list, scene: str, task: str) -> list[dict]:
    """Results of a frame as the devkit reads them."""
    found = []
    for label, (x, y), velocity, score, name in results:
        box = dict(sample_token=token, translation=[float(x), float(y), 1.], size=CLASSES[NAMES[label]][2],
                   rotation=[1., 0., 0., 0.], velocity=velocity.tolist())
        box.update({f'{task}_name': NAMES[label], f'{task}_score': score})
        box.update(dict(attribute_name='') if task == 'detection' else dict(tracking_id=f'{scene}/{name}'))
        found.append(box)
    return found


def make(folder: Path, frames: int, boxes: int) -> list[str]:
    """Write tables and both result files, with a fixed seed; the sample tokens."""
    tables = {name: [] for name in ('scene', 'sample', 'sample_data', 'ego_pose', 'instance', 'sample_annotation')}
    tables['sensor'] = [dict(token='lidar', channel='LIDAR_TOP', modality='lidar')]
    tables['calibrated_sensor'] = [dict(token='lidar', sensor_token='lidar', translation=[0, 0, 0],
                                        rotation=[1, 0, 0, 0], camera_intrinsic=[])]
    tables['category'] = [dict(token=name, name=CATEGORIES[name]) for name in NAMES]
    tables['attribute'] = []
    names = create_splits_scenes()['val']
    counts = [len(part) for part in np.array_split(np.arange(frames), -(-frames * len(names) // 6019))]
    scenes = [Scene(np.random.default_rng(seed), count, boxes) for seed, count in enumerate(counts)]
    for index, (name, scene) in enumerate(zip(names, scenes)):
        samples = [f'{name}-{frame:02}' for frame in range(scene.frames)]
        tables['scene'].append(dict(token=name, name=name, first_sample_token=samples[0], nbr_samples=scene.frames,
                                    last_sample_token=samples[-1], log_token='', description=''))
        for frame, token in enumerate(samples):
            stamp = int((index * 60 + frame * STEP) * 1e6)
            common = dict(token=token, timestamp=stamp)
            tables['sample'].append(dict(common, scene_token=name, prev=samples[frame - 1] if frame else '',
                                         next=samples[frame + 1] if frame + 1 < len(samples) else ''))
            tables['ego_pose'].append(dict(common, translation=[*scene.ego[frame].tolist(), 0.],
                                           rotation=[1., 0., 0., 0.]))
            tables['sample_data'].append(dict(common, sample_token=token, ego_pose_token=token, is_key_frame=True,
                                              calibrated_sensor_token='lidar', filename=''))
        for number, (label, times, positions, _) in enumerate(scene.objects):
            instance = f'{name}-instance-{number:012}'  # as long as a real token
            tables['instance'].append(dict(token=instance, category_token=NAMES[label]))
            for frame, position in zip(times, positions):
                def token(frame: int, instance: str = instance, times: np.ndarray = times) -> str:
                    return f'{instance}-{frame}' if times[0] <= frame <= times[-1] else ''
                tables['sample_annotation'].append(dict(
                    token=token(frame), sample_token=samples[frame], instance_token=instance, attribute_tokens=[],
                    translation=[*position.tolist(), 1.], size=CLASSES[NAMES[label]][2], rotation=[1., 0., 0., 0.],
                    num_lidar_pts=int(scene.rng.uniform() < .9), num_radar_pts=0, visibility_token='4',
                    prev=token(frame - 1), next=token(frame + 1)))
    (folder / VERSION).mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        (folder / VERSION / f'{name}.json').write_text(json.dumps(table))
    pairs = [(f'{name}-{frame:02}', results, name) for name, scene in zip(names, scenes)
             for frame, results in enumerate(scene.results)]
    for task in ('detection', 'tracking'):
        write_results(str(folder / f'{task}.json'), ((token, rows(token, *rest, task)) for token, *rest in pairs))
    return [token for token, *_ in pairs]


def estimate(evaluation: FrameSetTracking, alone: float) -> None:
    """Print the jobs and the times on some numbers of cores; ``alone`` CPU seconds run outside of jobs."""
    start = os.times().children_user + os.times().children_system
    subprocess.run([sys.executable, '-c', 'import georope.evaluation'], check=True, stdout=subprocess.DEVNULL)
    start = os.times().children_user + os.times().children_system - start
    jobs = evaluation.accumulation.jobs
    total = sum(seconds for *_, seconds in jobs)
    scores, rounds = ([seconds for _, score, seconds in jobs if (score is None) == first] for first in (True, False))
    print(f'CPU: {len(jobs)} jobs {total:.0f} s (the longest {max(scores):.0f} s for scores, {max(rounds):.0f} s for '
          f'metrics), outside of jobs {alone:.0f} s, start of a process {start:.0f} s')
    fixed = alone + start + max(scores) + max(rounds)
    print('estimated time: ' + ', '.join(f'{fixed + total / cores:.0f} s on {cores} cores' for cores in (2, 4, 8, 16)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('measure', choices=['detections', 'tracks', 'devkit'])
    parser.add_argument('--frames', type=int, default=6019)
    parser.add_argument('--boxes', type=int, default=300, help='per frame')
    parser.add_argument('--processes', type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    MMLogger.get_instance('benchmark')  # before the devkit's output is caught
    folder = args.folder / f'{args.frames}x{args.boxes}'
    done = folder / 'tokens.json'
    if not done.exists():
        done.write_text(json.dumps(make(folder, args.frames, args.boxes)))
    tokens = json.loads(done.read_text())
    nusc, peak, start, cpu = open_tables(VERSION, str(folder), tokens), Peak(), time.monotonic(), time.process_time()
    if args.measure == 'detections':
        print(f'NDS {evaluate_results(nusc, str(folder / "detection.json"), tokens, str(folder)).nd_score:.3f}')
    else:
        evaluation = FrameSetTracking(nusc, config_factory('tracking_nips_2019'), str(folder / 'tracking.json'), tokens,
                                      args.processes)
        print(f'loaded in {time.monotonic() - start:.0f} s ({time.process_time() - cpu:.0f} s CPU)', flush=True)
        found = (TrackingEval if args.measure == 'devkit' else FrameSetTracking).evaluate(evaluation)
        print(tracking_table(found[0]).split('AMOTA and')[0])
    print(f'{args.measure}, {len(tokens)} frames, {args.boxes} boxes each: {time.monotonic() - start:.0f} s, this '
          f'process {time.process_time() - cpu:.0f} s CPU, peak memory {peak.mib:.0f} MiB', flush=True)
    if args.measure == 'tracks':
        inside = sum(job[2] for job in evaluation.accumulation.jobs) if args.processes == 1 else 0
        estimate(evaluation, time.process_time() - cpu - inside)
    elif args.measure == 'devkit':
        # In this process: the devkit's scenes are in the order of a set, which Python changes from run to run.
        ours, theirs = ({**metrics.serialize(), 'eval_time': 0, 'details': details.serialize()}
                        for metrics, details in (evaluation.evaluate(), found))
        np.testing.assert_equal(ours, theirs)
        print('all numbers of ours and of the devkit are equal')


if __name__ == '__main__':
    main()
