"""Triton kernels around the matrix products of a layer, one pass over memory each, imported where they run."""
