"""The look of objects: coloured faces in a unit box, x forward, y left, z up from the ground.

Every class is a few boxes, some tapered, with painted patches: windows, lamps, stripes. All of it lies inside
the unit box [-0.5, 0.5] x [-0.5, 0.5] x [0, 1], which is scaled to (length, width, height) of the object, so that
nothing is painted outside the annotated box. White lamps and a light windscreen show the front, red lamps the back.
"""
from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

MAX_CORNERS = 8
_PATCH_BIAS = 1.004  # patches lie on the face they decorate and win its depth test by 0.4 % of the distance


@dataclass(frozen=True)
class Mesh:
    """Flat convex faces, counter-clockwise seen from outside.

    Attributes:
        corners: (F, 8, 3), the last corner repeated where a face has fewer.
        normals: (F, 3), unit length.
        colours: (F, 3), BGR, 0 to 255, unlit.
        bias: (F,), factor on the inverse depth.
        storeys: (F,), bool: painted with rows of windows (facades).
    """

    corners: np.ndarray
    normals: np.ndarray
    colours: np.ndarray
    bias: np.ndarray
    storeys: np.ndarray

    def scaled(self, length: float, width: float, height: float) -> Mesh:
        size = np.array([length, width, height])
        normals = self.normals / size
        return Mesh(self.corners * size, normals / np.linalg.norm(normals, axis=1, keepdims=True), self.colours,
                    self.bias, self.storeys)

    def posed(self, x: float, y: float, z: float, yaw: float) -> Mesh:
        """Turned about the vertical and moved, metres and radians."""
        cos, sin = np.cos(yaw), np.sin(yaw)
        turn = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
        return Mesh(self.corners @ turn.T + [x, y, z], self.normals @ turn.T, self.colours, self.bias, self.storeys)

    @staticmethod
    def join(meshes: list[Mesh]) -> Mesh:
        return Mesh(*(np.concatenate([getattr(m, name) for m in meshes])
                      for name in ('corners', 'normals', 'colours', 'bias', 'storeys')))


def colour(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    """BGR from hue in degrees and saturation, value in 0 to 1."""
    hsv = np.uint8([[[hue % 360 / 2, 255 * saturation, 255 * value]]])
    return tuple(int(v) for v in cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0, 0])


_BLACK, _DARK, _GLASS, _GREY, _WHITE = (30, 28, 28), (52, 50, 48), (120, 92, 62), (128, 128, 128), (240, 240, 240)
_LAMP, _REAR, _BRAKE, _SKIN, _HAIR = (210, 250, 255), (40, 30, 150), (60, 50, 255), (135, 175, 235), (30, 40, 50)


class _Builder:
    """Collects faces; all coordinates in the unit box."""

    def __init__(self):
        self.faces = []

    def face(self, corners, bgr, bias=1.0, storeys=False):
        self.faces.append((np.asarray(corners, float), bgr, bias, storeys))

    def box(self, x, y, z, bgr, top_x=None, top_y=None, storeys=False):
        """A box between the bounds x, y, z (pairs); narrower at the top with ``top_x``, ``top_y``. No floor."""
        (x0, x1), (y0, y1), (z0, z1) = x, y, z
        (a0, a1), (b0, b1) = top_x or x, top_y or y
        low = [(x0, y0, z0), (x1, y0, z0), (x1, y1, z0), (x0, y1, z0)]
        high = [(a0, b0, z1), (a1, b0, z1), (a1, b1, z1), (a0, b1, z1)]
        for i in range(4):
            j = (i + 1) % 4
            self.face([low[i], low[j], high[j], high[i]], bgr, storeys=storeys)
        self.face(high, bgr)

    def side(self, y, x, z, bgr):
        """The same patch on the left and the right side at y = +-``y``."""
        (x0, x1), (z0, z1) = x, z
        self.face([(x0, -y, z0), (x1, -y, z0), (x1, -y, z1), (x0, -y, z1)], bgr, _PATCH_BIAS)
        self.face([(x1, y, z0), (x0, y, z0), (x0, y, z1), (x1, y, z1)], bgr, _PATCH_BIAS)

    def end(self, x, y, z, bgr, front, top_x=None, bias=_PATCH_BIAS):
        """A patch that faces forward (``front``) or backward at ``x``; slanting to ``top_x``."""
        (y0, y1), (z0, z1) = y, z
        top_x = x if top_x is None else top_x
        corners = [(x, y0, z0), (x, y1, z0), (top_x, y1, z1), (top_x, y0, z1)]
        self.face(corners if front else corners[::-1], bgr, bias)

    def ends(self, x0, x1, width, z, front_bgr, rear_bgr):
        """Two lamps at the front ``x1``, two at the back ``x0``."""
        for y in ((-width, -0.55 * width), (0.55 * width, width)):
            self.end(x1, y, z, front_bgr, True)
            self.end(x0, y, z, rear_bgr, False)

    def wheel(self, x, y, radius_x, radius_z, bgr=_BLACK, hub=1.0):
        """An octagon at both sides y = +-``y`` that stands on the ground; ``hub``: only the inner part of it."""
        angle = np.pi / 4 * (np.arange(8) + 0.5)
        ring = np.stack([x + radius_x * np.cos(angle), np.full(8, -y), radius_z * (1 + hub * np.sin(angle))], 1)
        self.face(ring, bgr, _PATCH_BIAS)
        self.face((ring * [1, -1, 1])[::-1], bgr, _PATCH_BIAS)

    def mesh(self) -> Mesh:
        corners = np.stack([np.concatenate([c, np.repeat(c[-1:], MAX_CORNERS - len(c), 0)]) for c, *_ in self.faces])
        normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 1])
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        return Mesh(corners, normals, np.array([f[1] for f in self.faces], float), np.array([f[2] for f in self.faces]),
                    np.array([f[3] for f in self.faces]))


def _car(b, main, other, braking, rider):
    b.box((-.5, .5), (-.5, .5), (.16, .58), main)
    b.box((-.46, .22), (-.46, .46), (.58, 1.), main, top_x=(-.34, .06), top_y=(-.4, .4))
    b.side(.46, (-.38, .12), (.60, .80), _GLASS)
    b.end(.20, (-.4, .4), (.62, .93), (190, 160, 120), True, top_x=.09)
    b.end(-.45, (-.4, .4), (.64, .93), _DARK, False, top_x=-.36)
    b.ends(-.5, .5, .46, (.38, .50), _LAMP, _BRAKE if braking else _REAR)
    b.end(.5, (-.42, .42), (.18, .28), _BLACK, True)
    for x in (-.31, .31):
        b.wheel(x, .5, .075, .19)


def _truck(b, main, other, braking, rider):
    b.box((-.5, .18), (-.5, .5), (.22, 1.), main)
    b.box((.22, .5), (-.46, .46), (.14, .84), other, top_x=(.22, .46))
    b.box((-.48, .4), (-.36, .36), (.1, .22), _DARK)
    b.side(.5, (-.42, .10), (.52, .66), _WHITE)
    b.side(.46, (.28, .42), (.50, .74), _GLASS)
    b.end(.488, (-.4, .4), (.50, .76), (190, 160, 120), True, top_x=.468)
    b.ends(-.5, .5, .44, (.22, .32), _LAMP, _BRAKE if braking else _REAR)
    b.end(-.5, (-.02, .02), (.3, .95), _DARK, False)
    for x in (-.36, -.2, .34):
        b.wheel(x, .46 if x > 0 else .5, .07, .15)


def _construction_vehicle(b, main, other, braking, rider):
    for y in ((-.5, -.28), (.28, .5)):
        b.box((-.45, .25), y, (0., .24), _BLACK, top_x=(-.4, .2))
    b.box((-.46, .12), (-.42, .42), (.24, .58), main)
    b.box((-.18, .12), (-.38, .1), (.58, .94), main)
    b.side(.42, (-.4, -.05), (.30, .42), _BLACK)
    b.end(.12, (-.34, .06), (.62, .88), _GLASS, True)
    b.end(-.46, (-.36, .36), (.30, .50), _BRAKE if braking else _DARK, False)
    b.box((.10, .36), (.14, .34), (.5, .62), main, top_x=(.28, .42))      # boom, up and forward
    b.box((.28, .42), (.14, .34), (.62, 1.), main, top_x=(.32, .40))
    b.box((.36, .5), (.1, .4), (.06, .36), _DARK, top_x=(.38, .46))       # bucket
    b.box((.40, .46), (.18, .30), (.36, .9), main, top_x=(.36, .40))      # arm


def _bus(b, main, other, braking, rider):
    b.box((-.5, .5), (-.5, .5), (.1, 1.), main)
    b.side(.5, (-.47, .47), (.50, .78), _GLASS)
    for x in (-.31, -.12, .07, .26):
        b.side(.5, (x - .012, x + .012), (.50, .78), main)
    b.side(.5, (-.47, .47), (.20, .27), _WHITE)
    b.end(.5, (-.45, .45), (.38, .80), (190, 160, 120), True)
    b.end(.5, (-.3, .3), (.86, .95), (90, 220, 250), True)
    b.end(-.5, (-.38, .38), (.58, .80), _DARK, False)
    b.ends(-.5, .5, .46, (.18, .28), _LAMP, _BRAKE if braking else _REAR)
    for x in (-.28, .30):
        b.wheel(x, .5, .05, .14)


def _trailer(b, main, other, braking, rider):
    b.box((-.5, .42), (-.5, .5), (.28, 1.), main)
    b.box((-.46, .46), (-.2, .2), (.18, .28), _DARK)
    b.box((.34, .38), (-.3, .3), (0., .28), _DARK)                        # landing gear
    for x in (-.42, -.25, -.08, .09, .26):
        b.side(.5, (x - .022, x + .022), (.30, .98), other)
    b.side(.5, (-.5, .42), (.28, .34), _DARK)
    b.end(.42, (-.42, .42), (.34, .94), _DARK, True)
    b.end(-.5, (-.03, .03), (.3, .96), _DARK, False)
    b.ends(-.5, .46, .44, (.28, .36), _DARK, _BRAKE if braking else _REAR)
    for x in (-.40, -.30, -.20):
        b.wheel(x, .5, .042, .13)


def _barrier(b, main, other, braking, rider):
    b.box((-.5, .5), (-.5, .5), (0., .3), _GREY, top_x=(-.3, .3))
    b.box((-.3, .3), (-.5, .5), (.3, 1.), _WHITE, top_x=(-.2, .2))
    for y in (-.4, -.133, .133, .4):                                      # red and white stripes, both sides
        for sign in (1, -1):
            b.end(sign * .29, (y - .067, y + .067), (.36, .94), main, sign > 0, top_x=sign * .21)


def _cycle(b, main, frame_z, rider, person, wheel_x, wheel_z, thick):
    for x in (-.5 + wheel_x, .5 - wheel_x):
        b.box((x - .4 * wheel_x, x + .4 * wheel_x), (-.07, .07), (0., 2 * wheel_z), _BLACK)
        b.wheel(x, .08, wheel_x, wheel_z)
        b.wheel(x, .1, wheel_x * .55, wheel_z, _GREY, hub=.55)
    b.box((-.34, .30), (-thick, thick), (frame_z[0], frame_z[1]), main, top_x=(-.30, .26))
    b.box((.20, .28), (-.48, .48), (frame_z[1], frame_z[1] + .07), _DARK)  # handlebar
    b.end(.32, (-.14, .14), (frame_z[1] - .12, frame_z[1] + .02), _LAMP, True, bias=1.0)
    b.end(-.36, (-.14, .14), (frame_z[1] - .12, frame_z[1]), _BRAKE, False, bias=1.0)
    if rider:
        b.box((-.24, .06), (-.34, .34), (frame_z[1], .84), person, top_x=(-.12, .12))
        b.box((-.02, .14), (-.16, .16), (.84, 1.), _WHITE)
        b.box((-.16, .10), (-.3, .3), (.3, frame_z[1]), _DARK)


def _motorcycle(b, main, other, braking, rider):
    _cycle(b, main, (.24, .60) if rider else (.28, .86), rider, other, .15, .2 if rider else .26, .3)


def _bicycle(b, main, other, braking, rider):
    _cycle(b, main, (.26, .48) if rider else (.36, .84), rider, other, .2, .2 if rider else .34, .16)


def _pedestrian(b, main, other, braking, rider):
    for x, y in (((-.3, .05), (-.36, -.04)), ((-.05, .3), (.04, .36))):   # legs, in stride
        b.box(x, y, (0., .46), other)
    b.box((-.24, .24), (-.5, .5), (.44, .84), main, top_y=(-.42, .42))
    b.box((-.2, .2), (-.22, .22), (.84, 1.), _HAIR)
    b.end(.2, (-.2, .2), (.85, .96), _SKIN, True)
    b.end(.24, (-.12, .12), (.5, .8), _WHITE, True)


def _traffic_cone(b, main, other, braking, rider):
    b.box((-.5, .5), (-.5, .5), (0., .08), _DARK)
    b.box((-.36, .36), (-.36, .36), (.08, .42), main, top_x=(-.24, .24), top_y=(-.24, .24))
    b.box((-.24, .24), (-.24, .24), (.42, .66), _WHITE, top_x=(-.16, .16), top_y=(-.16, .16))
    b.box((-.16, .16), (-.16, .16), (.66, 1.), main, top_x=(-.06, .06), top_y=(-.06, .06))


_DRAW = dict(car=_car, truck=_truck, construction_vehicle=_construction_vehicle, bus=_bus, trailer=_trailer,
             barrier=_barrier, motorcycle=_motorcycle, bicycle=_bicycle, pedestrian=_pedestrian,
             traffic_cone=_traffic_cone)


def object_mesh(name: str, main, other, braking: bool = False, rider: bool = False) -> Mesh:
    """Unit mesh of a detection class in two BGR colours; ``braking`` lights the lamps, ``rider`` mounts a cycle."""
    builder = _Builder()
    _DRAW[name](builder, main, other, braking, rider)
    return builder.mesh()


def block_mesh(bgr, storeys: bool = False) -> Mesh:
    """A plain unit block: buildings (with ``storeys`` of windows), poles, garages."""
    builder = _Builder()
    builder.box((-.5, .5), (-.5, .5), (0., 1.), bgr, storeys=storeys)
    return builder.mesh()


def tree_mesh(bgr) -> Mesh:
    """A trunk under a pointed crown."""
    builder = _Builder()
    builder.box((-.08, .08), (-.08, .08), (0., .4), (40, 60, 85))
    builder.box((-.5, .5), (-.5, .5), (.28, .6), bgr, top_x=(-.42, .42), top_y=(-.42, .42))
    builder.box((-.42, .42), (-.42, .42), (.6, 1.), bgr, top_x=(-.1, .1), top_y=(-.1, .1))
    return builder.mesh()
