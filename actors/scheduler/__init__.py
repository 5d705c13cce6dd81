"""The scheduler: it decides what the worker computes next, and never touches a tensor."""

from .options import SchedulerOptions
from .scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerOptions"]
