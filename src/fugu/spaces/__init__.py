"""Any Gymnasium space as one flat row of bytes, and back: ``Layout`` says where each leaf lies.

``layout`` (Space -> leaves), ``pack`` (value <-> row, numpy), ``views`` (rows -> tensors, torch, imported on first use),
``as_json`` (space <-> JSON).
"""

from fugu.spaces.layout import Layout, Leaf, bound, convert, maxima
from fugu.spaces.pack import Packer

__all__ = ["Layout", "Leaf", "Packer", "bound", "convert", "maxima"]
