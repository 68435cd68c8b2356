"""What this project adds to georope; imported by its configs."""
from .ground_urope import GroundURoPE

__all__ = ['GroundURoPE']
