"""Frames that lack a camera, or whose image is missing or broken: refused with counts, left out, or padded."""
import shutil

import numpy as np
import pytest
from mmengine.logging import MMLogger
from small_nuscenes import SIX, TEST, TRAIN

from georope.datasets import CameraDataset


@pytest.fixture
def images(small_root, tmp_path, infos):
    """Two frames without a record of CAM_BACK, one file deleted, one cut off, one empty; a copy of the images."""
    folder = tmp_path / 'set' / 'samples'
    shutil.copytree(small_root / 'samples', folder)
    entries = infos['data_list']
    for i in (0, 3):
        del entries[i]['images']['CAM_BACK']
    path = [lambda i, name: folder / name / entries[i]['images'][name]['img_path']][0]
    path(3, 'CAM_FRONT').unlink()
    cut = path(1, 'CAM_FRONT_LEFT')
    cut.write_bytes(cut.read_bytes()[:-300])
    path(1, 'CAM_FRONT_RIGHT').write_bytes(b'')
    return folder.parent


@pytest.fixture
def log():
    said = []
    logger = MMLogger.get_current_instance()
    original, logger.callHandlers = logger.callHandlers, lambda record: said.append(record.getMessage())
    yield said
    logger.callHandlers = original


def test_all_frames_that_lack_a_camera_are_counted_at_once(infos, build, images):
    with pytest.raises(ValueError, match=r"sample scene-0061-0 has the cameras .*all frames need the same ones. 2 of 5 "
                       r"frames are not whole \(CAM_BACK: not in the info file 2\), the first is sample scene-0061-0"
                       r".*incomplete='skip'.*'mask'"):
        build(infos)


def test_skip_leaves_out_and_starts_streams_anew(infos, build, images, log):
    dataset = build(infos, incomplete='skip', data_root=str(images), pipeline=TRAIN)
    assert [dataset[i]['data_samples'].token for i in range(2)] == ['scene-0061-2', 'scene-0553-1']
    assert not any(dataset.get_data_info(i)['prev_exists'] for i in range(2))
    assert [dataset.get_data_info(i)['frame_idx'] for i in range(2)] == [2, 1]
    told, = [line for line in log if 'not whole' in line]
    assert '3 of 5 frames are not whole' in told and 'CAM_BACK: not in the info file 2' in told
    assert 'CAM_FRONT: no image file 1' in told and 'CAM_FRONT_RIGHT: broken image 1' in told
    with pytest.raises(ValueError, match="a test needs all of them: use 'mask'"):
        build(infos, incomplete='skip', test_mode=True)
    with pytest.raises(ValueError, match="incomplete='drop', choose one of error, skip, mask"):
        build(infos, incomplete='drop')


@pytest.mark.parametrize('test_mode', [False, True])
def test_mask_pads_what_is_missing(infos, build, images, log, test_mode):
    """Whatever the file says of the sizes."""
    for entry in infos['data_list']:
        for image in entry['images'].values():
            del image['height'], image['width']
    dataset = build(infos, incomplete='mask', data_root=str(images), pipeline=TEST if test_mode else TRAIN,
                    test_mode=test_mode)
    missing = [['CAM_BACK'], ['CAM_FRONT_RIGHT', 'CAM_FRONT_LEFT'], [], ['CAM_FRONT', 'CAM_BACK'], []]
    for i, names in enumerate(missing):
        data = dataset[i]
        sample = data['data_samples']
        assert sample.missing_cameras == names and sample.cam_names == list(SIX)
        assert sample.prev_exists == (i not in (0, 3))
        for j, (name, image) in enumerate(zip(SIX, data['inputs']['img'])):
            assert image.any() != (name in names) and (sample.img_shape[j] == (0, 0)) == (name in names)
            assert np.linalg.matrix_rank(sample.lidar2img[j]) == 4
            if not test_mode and name in names:
                assert not len(sample.gt_cameras[j])
        assert test_mode or any(map(len, sample.gt_cameras))


def test_an_image_that_only_the_decoder_finds_broken_is_padded_too(infos, build, images, log):
    """And where no camera is left, all of them are black and none is hidden."""
    for name, image in infos['data_list'][4]['images'].items():
        (images / 'samples' / name / image['img_path']).write_bytes(b'no image at all')
    dataset = build(infos, incomplete='mask', data_root=str(images), pipeline=TRAIN)
    data = dataset[4]
    assert data['data_samples'].missing_cameras == [] and not data['inputs']['img'].any()
    assert data['data_samples'].img_shape == [(96, 256)] * 6
    assert any('hidden: sample scene-0553-1, camera CAM_FRONT' in line for line in log)


def test_padding_behind_the_end_of_a_jpeg_is_no_fault(infos, build, images, log):
    """Some cameras pad their files."""
    padded = images / 'samples/CAM_FRONT' / infos['data_list'][2]['images']['CAM_FRONT']['img_path']
    padded.write_bytes(padded.read_bytes() + bytes(1000))
    frame = build(infos, incomplete='mask', data_root=str(images), pipeline=TEST, test_mode=True)[2]
    assert frame['data_samples'].missing_cameras == [] and frame['inputs']['img'][0].any()


def test_rigs_of_two_vehicles_in_one_set(infos, build, log):
    """Each frame has the cameras of both, those of the other are padding."""
    for entry in infos['data_list'][3:]:
        entry['images'] = {f'OTHER_{name}': image for name, image in entry['images'].items()}
    frames = build(infos, incomplete='mask')
    assert len(frames.get_data_info(0)['cam_names']) == 12
    missing = frames.get_data_info(0)['missing_cameras']
    assert len(missing) == 6 and all(name.startswith('OTHER_') for name in missing)


def test_a_subset_of_cameras(infos, build, images, small_root):
    names = ['CAM_FRONT_LEFT', 'CAM_FRONT']
    dataset = build(infos, cameras=names, pipeline=TRAIN)  # the frames lack others
    sample = dataset[0]['data_samples']
    assert sample.cam_names == ['CAM_FRONT', 'CAM_FRONT_LEFT'] and len(sample.gt_cameras) == 2
    assert dataset[0]['inputs']['img'].shape[0] == 2
    with pytest.raises(ValueError, match=r'cameras: .*infos.pkl has no CAM_TOP, but CAM_FRONT, .*CAM_BACK_RIGHT'):
        build(infos, cameras=['CAM_TOP'])
    assert isinstance(dataset, CameraDataset)
