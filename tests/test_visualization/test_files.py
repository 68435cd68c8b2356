"""Films that read back, and what is left behind when they fail."""
import cv2
import numpy as np
import pytest
from PIL import Image

from georope.visualization import save_film

FRAMES = [np.full((61, 99, 3), 40 * i + 20, np.uint8) for i in range(5)]


def test_mp4_reads_back(tmp_path):
    """Odd sides are made even, which the encoder wants."""
    path = tmp_path / 'new' / 'a.mp4'
    save_film(str(path), iter(FRAMES), 4)
    film = cv2.VideoCapture(str(path))
    assert film.get(cv2.CAP_PROP_FPS) == 4
    found = []
    while True:
        good, picture = film.read()
        if not good:
            break
        found.append(picture)
    assert [picture.shape for picture in found] == [(62, 100, 3)] * 5
    # In order; the codec's own rounding is some grey levels.
    np.testing.assert_allclose([picture.mean() for picture in found], [20, 60, 100, 140, 180], atol=6)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize('width', [100, 2000])
def test_gif_reads_back(tmp_path, width):
    """In order, at its pace, no wider than 1280."""
    pictures = [np.full((50, width, 3), (20, 20, 50 * i), np.uint8) for i in range(3)]
    save_film(str(tmp_path / 'a.gif'), pictures, 4)
    with Image.open(tmp_path / 'a.gif') as gif:
        assert gif.n_frames == 3 and gif.info['duration'] == 250
        assert gif.size == ((100, 50) if width == 100 else (1280, 32))
        gif.seek(2)
        np.testing.assert_allclose(gif.convert('RGB').getpixel((9, 9)), (100, 20, 20), atol=4)


@pytest.mark.parametrize('name', ['a.mp4', 'a.gif'])
def test_failure_leaves_nothing(tmp_path, name):
    with pytest.raises(ValueError, match=r'picture 1 for .* has shape \(60, 99, 3\), those before it \(61, 99, 3\)'):
        save_film(str(tmp_path / name), [FRAMES[0], FRAMES[1][1:]], 4)
    with pytest.raises(ValueError, match='no pictures'):
        save_film(str(tmp_path / name), [], 4)
    assert not list(tmp_path.iterdir())


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r'is \.mp4 or \.gif'):
        save_film(str(tmp_path / 'a.avi'), FRAMES, 4)
