"""The worker: one model, its KV pool and its rows, in a thread of their own."""

from .options import Describe, WorkerDescription, WorkerOptions
from .worker import Worker

__all__ = ["Describe", "Worker", "WorkerDescription", "WorkerOptions"]
