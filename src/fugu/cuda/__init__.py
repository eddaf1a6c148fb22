"""Kernels of our own on a GPU: compiled at run time by NVRTC from the headers in ``native/``, cached, and launched on torch's stream.

Nothing here needs a GPU to be imported, and nothing is compiled before it is first used. The same sources compile for the CPU
(``emulate``), slowly, so that every kernel is tested where there is no card.
"""
