"""Where Triton's kernels are tested: on a GPU if there is one, else in Triton's interpreter.

Import this before any module that imports triton: it reads the variable when a kernel is defined.
"""

import os

import torch

__all__ = ["DEVICE", "GPU"]

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")

if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"
