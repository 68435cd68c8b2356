"""The method: rotary position codes between image tokens and 3D queries. Imports torch only."""
from .attention import RotaryAttention
from .encodings import NoEncoding, URoPE
from .rays import Rays
from .rotation import Rotation

__all__ = ['NoEncoding', 'RotaryAttention', 'Rays', 'Rotation', 'URoPE']
