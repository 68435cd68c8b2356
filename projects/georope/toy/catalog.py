"""The ten detection classes: nuScenes category, typical size and colours, where they stand, how fast they go."""
from __future__ import annotations

from dataclasses import dataclass

ATTRIBUTES = ('vehicle.moving', 'vehicle.stopped', 'vehicle.parked', 'cycle.with_rider', 'cycle.without_rider',
              'pedestrian.sitting_lying_down', 'pedestrian.standing', 'pedestrian.moving')

# All 23 categories of nuScenes, in its order.
CATEGORIES = ('human.pedestrian.adult', 'human.pedestrian.child', 'human.pedestrian.wheelchair',
              'human.pedestrian.stroller', 'human.pedestrian.personal_mobility', 'human.pedestrian.police_officer',
              'human.pedestrian.construction_worker', 'animal', 'vehicle.car', 'vehicle.motorcycle',
              'vehicle.bicycle', 'vehicle.bus.bendy', 'vehicle.bus.rigid', 'vehicle.truck', 'vehicle.construction',
              'vehicle.emergency.ambulance', 'vehicle.emergency.police', 'vehicle.trailer', 'movable_object.barrier',
              'movable_object.trafficcone', 'movable_object.pushable_pullable', 'movable_object.debris',
              'static_object.bicycle_rack')


@dataclass(frozen=True)
class ClassSpec:
    """One detection class.

    Attributes:
        name, category: of the detection task; of the nuScenes taxonomy.
        size: mean width, length, height in metres (nuScenes' order).
        main, other: the two colours as hue (degrees), saturation, value (0 to 1); instances vary around them.
        per_100m: objects per 100 m of street.
        reach: distance (m) within which the devkit evaluates the class.
        zones: where objects are put (see georope.toy.placement), drawn with equal chance.
    """

    name: str
    category: str
    size: tuple[float, float, float]
    main: tuple[float, float, float]
    other: tuple[float, float, float]
    per_100m: float
    reach: float
    zones: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Group that shares attributes: vehicle, cycle, pedestrian or static."""
        if self.category.startswith('human'):
            return 'pedestrian'
        if self.category in ('vehicle.bicycle', 'vehicle.motorcycle'):
            return 'cycle'
        return 'vehicle' if self.category.startswith('vehicle') else 'static'


_ROAD = ('lane', 'oncoming')
_FAR = ('far_right', 'far_left')     # large things stand at the back: they hide less
_NEAR = ('near_right', 'near_left')

_SPECS = (
    ClassSpec('car', 'vehicle.car', (1.92, 4.6, 1.7), (2, .85, .80), (0, 0, .9), 3.8, 50,
              _ROAD * 2 + ('park_right', 'park_left') + _FAR),
    ClassSpec('truck', 'vehicle.truck', (2.5, 7.0, 3.0), (135, .75, .55), (135, .4, .8), 1.4, 50, _ROAD + _FAR * 2),
    ClassSpec('construction_vehicle', 'vehicle.construction', (2.8, 6.3, 3.2), (50, .95, .95), (50, .5, .5), 1.3, 50,
              ('park_left',) + _FAR * 2),
    ClassSpec('bus', 'vehicle.bus.rigid', (2.9, 11.0, 3.5), (218, .85, .80), (218, .5, .9), 1.3, 50,
              ('oncoming',) + _FAR * 2),
    ClassSpec('trailer', 'vehicle.trailer', (2.9, 11.5, 3.8), (30, .10, .80), (25, .75, .45), 1.3, 50, _FAR),
    ClassSpec('barrier', 'movable_object.barrier', (2.5, 0.5, 1.0), (355, .90, .85), (0, 0, .9), 2.6, 30,
              ('curb_right', 'curb_left') + _NEAR),
    ClassSpec('motorcycle', 'vehicle.motorcycle', (0.8, 2.1, 1.45), (285, .80, .75), (300, .55, .95), 1.8, 40,
              _ROAD + ('bike_right', 'bike_left') + _NEAR * 2),
    ClassSpec('bicycle', 'vehicle.bicycle', (0.65, 1.75, 1.4), (182, .90, .90), (165, .60, .85), 1.8, 40,
              ('bike_right', 'bike_left', 'walk_right', 'walk_left') + _NEAR),
    ClassSpec('pedestrian', 'human.pedestrian.adult', (0.68, 0.72, 1.77), (330, .65, .90), (240, .6, .35), 3.2, 40,
              ('walk_right', 'walk_left') + _NEAR),
    ClassSpec('traffic_cone', 'movable_object.trafficcone', (0.45, 0.45, 1.0), (18, .98, 1.0), (0, 0, .9), 2.7, 30,
              ('curb_right', 'curb_left') + _NEAR),
)
CLASSES = {spec.name: spec for spec in _SPECS}
