"""What is painted is where the written calibration says; nearer things hide farther ones."""
import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import georope.toy.maker as maker
from georope.toy import make_toy_nuscenes
from georope.toy.catalog import CLASSES
from georope.toy.motion import Standing
from georope.toy.placement import make_object
from georope.toy.render import Camera, Lens, Light, render
from georope.toy.shapes import block_mesh
from georope.toy.world import build_scene

ONE = dict(scenes=(0, 1), samples_per_scene=1, image_size=(225, 400), progress=False)


def pose(row):
    w, x, y, z = row['rotation']
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_quat([x, y, z, w]).as_matrix()
    matrix[:3, 3] = row['translation']
    return matrix


def make_with(objects, out):
    """A one-frame set of the street with these objects only; images by channel, projections, annotations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maker, 'build_scene', lambda options, name: replace(
            build_scene(options, name), objects=tuple(objects), blocks=()))
        root = make_toy_nuscenes(out, **ONE)
    tables = {f.stem: json.loads(f.read_text()) for f in (root / 'v1.0-mini').iterdir()}
    rows = {row['token']: row for table in tables.values() for row in table}
    views = {}
    for data in tables['sample_data']:
        calibrated = rows[data['calibrated_sensor_token']]
        if calibrated['camera_intrinsic']:
            to_camera = np.linalg.inv(pose(rows[data['ego_pose_token']]) @ pose(calibrated))
            views[rows[calibrated['sensor_token']]['channel']] = (
                cv2.imread(str(root / data['filename'])), np.array(calibrated['camera_intrinsic']), to_camera)
    return views, tables['sample_annotation']


def hull_mask(annotation, intrinsic, to_camera, size):
    """Mask of the projected box, or None where it is not wholly in front of the camera and inside the image."""
    width, length, height = annotation['size']
    signs = np.stack(np.meshgrid([-1, 1], [-1, 1], [-1, 1]), -1).reshape(-1, 3)
    corners = np.c_[signs * [length, width, height] / 2, np.ones(8)] @ (to_camera @ pose(annotation)).T
    if corners[:, 2].min() < 1:
        return None
    pixels = (corners[:, :3] @ intrinsic.T) / corners[:, 2:3]
    pixels = pixels[:, :2]
    if (pixels < 2).any() or (pixels > np.array(size[::-1]) - 2).any():
        return None
    mask = np.zeros(size, np.uint8)
    hull = cv2.convexHull(np.round((pixels - 0.5) * 16).astype(np.int32))
    cv2.fillConvexPoly(mask, hull, 1, shift=4)
    return mask


@pytest.fixture(scope='module')
def world():
    return build_scene(maker.ToyOptions(ONE['scenes'], 1, ONE['image_size']), 'scene-0103')


@pytest.fixture(scope='module')
def empty(tmp_path_factory):
    return make_with([], tmp_path_factory.mktemp('empty') / 'set')[0]


@pytest.mark.parametrize('name', list(CLASSES))
def test_an_object_is_painted_inside_its_projected_box(name, world, empty, tmp_path):
    """Six objects on a ring: in each camera the pixels that differ from the empty street lie in the projected box."""
    rng = np.random.default_rng(3)
    (x, y), heading = world.street.point(0.0), float(world.street.heading(0.0))
    ring = [heading + np.radians(a) for a in (0, -55, 55, 180, 110, -110)]
    radius = 8 if max(CLASSES[name].size) < 3 else 20
    objects = [make_object(rng, f'{name}-{i}', name, Standing(x + radius * np.cos(a), y + radius * np.sin(a), a + 0.7))
               for i, a in enumerate(ring)]
    views, annotations = make_with(objects, tmp_path / 'full')
    assert len(annotations) == 6 and len(views) == 6
    seen = 0
    for channel, (image, intrinsic, to_camera) in views.items():
        changed = (np.abs(image.astype(int) - empty[channel][0]).max(-1) > 45).astype(np.uint8)
        masks = [m for a in annotations if (m := hull_mask(a, intrinsic, to_camera, changed.shape)) is not None]
        if len(masks) != 1:  # a second object reaches into this image
            continue
        grown = cv2.dilate(masks[0], np.ones((5, 5), np.uint8))  # blur and JPEG reach two pixels
        assert (changed & ~grown & 1).sum() == 0, channel
        # The object fills a good part of its box and is in the middle of it.
        assert changed.sum() > 0.3 * masks[0].sum()
        offset = np.argwhere(changed).mean(0) - np.argwhere(masks[0]).mean(0)
        assert np.abs(offset).max() < 0.25 * np.sqrt(masks[0].sum())
        seen += 1
    assert seen >= 4


@pytest.fixture
def stage(world):
    """A level camera 1.5 m above the street, looking along x, and a way to render blocks in front of it."""
    intrinsic = np.array([[200., 0, 100], [0, 200, 50], [0, 0, 1]])
    axes = np.array([[0., 0, 1], [-1, 0, 0], [0, -1, 0]])
    camera = Camera(Lens(intrinsic, (100, 200)), axes, np.array([0, 0, 1.5]))
    light = Light.draw(np.random.default_rng(0))
    return lambda *meshes: render(camera, list(meshes), world.ground, light)


def block(x, y, width, height=2.0):
    return block_mesh((0, 0, 255)).scaled(1.0, width, height).posed(x, y, 0.0, 0.0)


def test_nearer_hides_farther_in_any_order(stage):
    near, far = block(10, 0, 2), block(20, 2, 2)
    for i, meshes in enumerate(([near, far], [far, near])):
        picture = stage(*meshes)
        visible = np.bincount(picture.owner[picture.owner >= 0], minlength=2)
        assert visible[i] == picture.alone[i]
        assert 0 < visible[1 - i] < 0.8 * picture.alone[1 - i]


def test_long_thing_beside_a_small_one_is_cut_by_depth_not_by_centre(stage):
    """The wall's middle is nearer than the block, the part of it behind the block is not."""
    wall = block_mesh((0, 255, 0)).scaled(40.0, 0.2, 2.0).posed(16.0, 2.0, 0.0, -0.1)
    small = block(30, 0.2, 0.6)
    picture = stage(wall, small)
    assert (picture.owner == 1).sum() == picture.alone[1] > 0


def test_near_plane_cuts_what_reaches_behind_the_camera(stage):
    picture = stage(block_mesh((0, 0, 255)).scaled(60.0, 1.0, 1.0).posed(0.0, 2.0, 0.0, 0.0))
    assert (picture.owner[:, :60] == 0).any() and not (picture.owner[:, 101:] == 0).any()
    assert stage(block(-10, 0, 2)).alone[0] == 0


def test_size_of_a_block_in_pixels(stage):
    picture = stage(block(10.5, 0, 2.0))  # front face 10 m away: 2 m x 200 px / 10 m
    columns = np.flatnonzero((picture.owner == 0).any(0))
    assert abs(columns[0] - 80) <= 1 and abs(columns[-1] - 119) <= 1
