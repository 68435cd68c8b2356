"""Images per second of one core: both ways of LoadCameraImages, and the usual way; and how far their pixels are apart.

    tools/benchmark_loading.py data/nuscenes/samples       # any folder with JPEGs of one size below it

The usual way decodes the whole JPEG, resizes it with Pillow, crops, converts to float32 and normalises on the CPU.
"""
import argparse
import time
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from georope.datasets.transforms import ImageAug, LoadCameraImages
from georope.datasets.transforms.image_aug import ImagePlan

MEAN, STD = np.float32([103.53, 116.28, 123.675]), np.float32([57.375, 57.12, 58.395])


def usual(path: str, plan: ImagePlan) -> np.ndarray:
    height, width = plan.source
    image = Image.fromarray(cv2.imread(path)).resize((int(width * plan.resize), int(height * plan.resize)))
    x, y = plan.crop
    image = image.crop((x, y, x + plan.size[1], y + plan.size[0]))
    return (np.array(image).astype(np.float32) - MEAN) / STD


def load(decode: str, path: str, plan: ImagePlan) -> np.ndarray:
    frame = dict(token='', cam_names=[''], img_path=[path], image_plans=[plan])
    return LoadCameraImages(decode).transform(frame)['img'][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--images', type=int, default=24)
    parser.add_argument('--repeats', type=int, default=5, help='the fastest of so many counts')
    args = parser.parse_args()
    cv2.setNumThreads(1)
    paths = [str(path) for path in islice(sorted(args.folder.rglob('*.jpg')), args.images)]
    if not paths:
        parser.error(f'no *.jpg below {args.folder}')
    source = cv2.imread(paths[0]).shape[:2]
    ways = {'usual': usual, 'full': lambda *item: load('full', *item), 'reduced': lambda *item: load('reduced', *item)}

    recipe = ImageAug((256, 704), (0.38, 0.55), rand_flip=False)
    np.random.seed(0)
    recipe_plans = [recipe.plan(source, recipe.draw()) for _ in paths]
    fixed = {f'resize {resize}': [recipe.plan(source, dict(recipe.draw(), resize=resize))] * len(paths)
             for resize in (0.38, 0.44, 0.5, 0.55)}
    print(f'{len(paths)} images of {source[1]}x{source[0]} to 704x256')
    print(f'{"":24}' + ''.join(f'{way:>18}' for way in ways) + '   reduced - full: mean |.|, rms, max')
    for name, plans in {'recipe (0.38 to 0.55)': recipe_plans, **fixed}.items():
        speeds = []
        for way in ways.values():
            times = []
            for _ in range(args.repeats):
                start = time.process_time()
                for item in zip(paths, plans):
                    way(*item)
                times.append(time.process_time() - start)
            speeds.append(len(paths) / min(times))
        off = np.stack([load('reduced', *item).astype(float) - load('full', *item) for item in zip(paths, plans)])
        print(f'{name:24}' + ''.join(f'{speed:8.1f} ({speed / speeds[0]:.2f}x)'.rjust(18) for speed in speeds) +
              f'   {np.abs(off).mean():.2f}, {np.sqrt((off**2).mean()):.2f}, {np.abs(off).max():.0f}', flush=True)


if __name__ == '__main__':
    main()
