"""The actor library: it knows nothing of language models."""

from .actor import Actor
from .errors import ActorDied, AskCycle, DeadLetter, MailboxFull, RestartLimit, Stopped, SupervisorClosed
from .inbox import Inbox
from .job import Job
from .message import Ask, Down, Message
from .ref import Ref
from .reply import Asker, Reply
from .statistics import Statistics
from .supervisor import Supervisor

__all__ = [
    "Actor",
    "ActorDied",
    "Ask",
    "AskCycle",
    "Asker",
    "DeadLetter",
    "Down",
    "Inbox",
    "Job",
    "MailboxFull",
    "Message",
    "Ref",
    "Reply",
    "RestartLimit",
    "Statistics",
    "Stopped",
    "Supervisor",
    "SupervisorClosed",
]
