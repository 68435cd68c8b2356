"""The method: rotary position encodings between image tokens and 3D queries. Imports torch only."""
from .attention import RotaryAttention
from .base import PositionEncoding, Support
from .cameras import GTA, Pluecker, PRoPE
from .encodings import (
    BEVTimeRoPE,
    LearnedDepth,
    NoEncoding,
    RayRoPE,
    RoPE3D,
    URoPE,
    WorldRoPE,
)
from .rays import Rays
from .rotation import Rotation, Transform

__all__ = ['BEVTimeRoPE', 'GTA', 'LearnedDepth', 'NoEncoding', 'PRoPE', 'Pluecker', 'PositionEncoding', 'RayRoPE',
           'Rays', 'RoPE3D', 'RotaryAttention', 'Rotation', 'Support', 'Transform', 'URoPE', 'WorldRoPE']
