"""Every message between the runtime's actors, one union a seam.

Packed arrays travel as `bytes` in native byte order: int32 unless a field says otherwise.  One message a step,
not one a token.  A *request* is an int the dispatcher gave; a *row* is an index into the worker's device state;
a *slot* is an index into the KV pool; a *position* counts tokens from the start of the sequence.

    who speaks                  to whom         what            where
    clients                     Dispatcher      ToDispatcher    requests.py
    Detokenizer                 Dispatcher      Deltas
    Dispatcher, Detokenizer     Scheduler       ToScheduler     scheduling.py
    Scheduler                   Worker          ToWorker        steps.py
    Worker                      Scheduler       StepDone        (a worker that breaks crashes, and Core with it)
    Scheduler, Dispatcher       Detokenizer     ToDetokenizer   texts.py
    anybody                     Tokenizer       ToTokenizer
    anybody                     Grammar         ToGrammar
    Dispatcher                  clients         Delta           results.py
"""

from __future__ import annotations

from .requests import (
    Abort,
    AbortTag,
    CoreStarted,
    CoreStopped,
    Deltas,
    DispatcherStatistics,
    Emptied,
    LiveRequests,
    Paused,
    Resumed,
    Submit,
    ToDispatcher,
)
from .results import (
    GRAMMAR_CUT,
    Delta,
    Finish,
    FinishReason,
    Healed,
    Score,
    TokenLogprob,
)
from .scheduling import (
    AbortAll,
    Flush,
    Flushed,
    Generate,
    Reconcile,
    Released,
    SchedulerStatistics,
    Stopped,
    ToScheduler,
)
from .steps import (
    Begin,
    Extend,
    Forced,
    InputLogprobs,
    NextLogprobs,
    Reset,
    RowFailure,
    Step,
    StepDone,
    ToWorker,
    WorkerStatistics,
)
from .texts import (
    Close,
    Compile,
    Decode,
    Encode,
    Finished,
    Heal,
    Open,
    ToDetokenizer,
    ToGrammar,
    Tokens,
    ToTokenizer,
)

__all__ = [
    "GRAMMAR_CUT",
    "Abort",
    "AbortAll",
    "AbortTag",
    "Begin",
    "Close",
    "Compile",
    "CoreStarted",
    "CoreStopped",
    "Decode",
    "Delta",
    "Deltas",
    "DispatcherStatistics",
    "Emptied",
    "Encode",
    "Extend",
    "Finish",
    "FinishReason",
    "Finished",
    "Flush",
    "Flushed",
    "Forced",
    "Generate",
    "Heal",
    "Healed",
    "InputLogprobs",
    "LiveRequests",
    "NextLogprobs",
    "Open",
    "Paused",
    "Reconcile",
    "Released",
    "Reset",
    "Resumed",
    "RowFailure",
    "SchedulerStatistics",
    "Score",
    "Step",
    "StepDone",
    "Stopped",
    "Submit",
    "ToDetokenizer",
    "ToDispatcher",
    "ToGrammar",
    "ToScheduler",
    "ToTokenizer",
    "ToWorker",
    "TokenLogprob",
    "Tokens",
    "WorkerStatistics",
]
