"""Kernels in C, compiled by the machine they run on."""
