"""Tensor kernels: attention, norms, rope, sampling, masks."""
