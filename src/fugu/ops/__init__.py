"""Operations with kernels: one file each, with its readable reference, its dispatch (torch, native CPU, CUDA) and the calls of each
form."""

LOG_STD_RANGE = (-10.0, 4.0)
"""what the log of a Gaussian's standard deviation is clamped to: deviations from 0.000045 to 54.6; also in native/cuda/rows.h. It
stands here because configs need it without torch"""
