"""Run one Step: forward pass, masks, sampling, result; the model's thread calls it and nobody else.

The three parts are apart so that a device can be kept busy: `forward` only launches work; `sample` fills the grammars'
masks on the host while the device runs, then launches the rest; `collect` is the one place that waits for the device.
Masks need the tokens of the step before, so the order with two steps on their way is forward(k + 1), collect(k),
sample(k + 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from ...kernels.attention.interface import Attention
from ...kernels.kv_pool import KVPool
from ...kernels.masks import ban
from ...kernels.native.draw import native_draw
from ...kernels.native.step import NativeStep
from ...kernels.random import uniform
from ...kernels.sampling import add_bias, sample
from ...models.model import Model
from ..grammar import GrammarCache
from ..messages import Begin, Extend, Forced, Step, StepDone
from .batch import Batch, Sampled, build_batch
from .choose import Choice, Chooser
from .forced import FastForward
from .grammar_rows import GrammarRows
from .masks import Masks
from .penalties import Penalties
from .result import Packed, Result, pack
from .rows import Rows
from .scores import Scorer, Scores, read_asked, torch_log_probabilities
from .to_device import to_device

__all__ = ["Pass", "Runner"]


@dataclass(slots=True)
class Pass:
    """A step on its way.  sampled and choice are None if no row of it samples.

    surplus: indices of sampled rows whose tokens nobody wants.  scores: what its prompts are asked for.
    forward_s: the device's time.  gap_s: how long the device had nothing to do before.  launch_s: what its thread
    worked to launch it.  waited_s: what `collect` spent on waiting for the device.  prompt_tokens: computed by it.
    """

    number: int
    started: float
    sampled: Sampled | None = None
    choice: Choice | None = None
    surplus: frozenset[int] = frozenset()
    logits_NV: Tensor | None = None
    packed: Packed | None = None
    scores: Scores = field(default_factory=Scores)
    forward_s: float = 0.0
    gap_s: float = 0.0
    launch_s: float = 0.0
    waited_s: float = 0.0
    prompt_tokens: int = 0

    @property
    def waits(self) -> bool:
        """Whether sampling needs the tokens of the steps before on the host: masks are made of them there."""
        return self.choice is not None and bool(self.choice.grammar)


class Runner:
    """Own the rows' state and run steps over a model and its KV pool.

    overlaps: whether a step may be launched while the one before is on its way.  fast_forward: whether what a grammar
    forces is told at once.
    """

    overlaps = False

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        attention: Attention,
        rows: Rows,
        grammars: GrammarCache | None = None,
        *,
        fast_forward: bool = True,
    ) -> None:
        self.rows = rows
        self._model = model
        self._pool = pool
        self._attention = attention
        self._chooser = Chooser(rows)
        self._native = native_draw(rows.device)
        self._forced = FastForward(rows, enabled=fast_forward)
        self._grammars = GrammarRows(rows, grammars, self._forced)
        native = getattr(model, "native", None)
        self._native_step = native if isinstance(native, NativeStep) else None
        if self._native_step is not None:
            self._native_step.before = self._grammars.start
        self.scorer = Scorer(model, rows, torch_log_probabilities)

    def statistics(self) -> dict[str, Any]:
        """Tell what only this kind of runner knows; called from any thread."""
        return {}

    def end(self) -> None:
        """End what runs beside it."""
        self._grammars.end()

    def run(self, step: Step) -> StepDone:
        """Run a step to its end."""
        running = self.forward(step)
        self.sample(running)
        return self.collect(running)

    # --- forward -------------------------------------------------------------------------------------------------

    def forward(self, step: Step) -> Pass:
        """Retire and begin rows, and launch the forward pass."""
        running = Pass(step.number, perf_counter())
        self._prepare(step)
        started = perf_counter()
        self._launch(running, step)
        running.forward_s = perf_counter() - started
        return running

    def _prepare(self, step: Step) -> None:
        """Retire and begin rows."""
        for row in np.frombuffer(step.retired_rows, np.int32).tolist():
            self.rows.retire(row)
        for extend in step.extends:
            if extend.begin is not None:
                self._begin(extend, extend.begin)
            else:
                self._forced.resume(extend)

    def _launch(self, running: Pass, step: Step) -> None:
        batch = build_batch(step, self.rows)
        if batch is not None:
            self._compute(running, step, batch)

    def _compute(self, running: Pass, step: Step, batch: Batch) -> None:
        """Launch a forward pass whose inputs are on the device, and the logits and scores that it is wanted for."""
        plan, index_N, sampling = self._attention.plan(batch.attention), batch.index_N, len(batch.sampled.rows) > 0
        asked = read_asked(step.extends)
        ends_M = to_device(asked.ends, self.rows.device) if asked.ends else None
        # Whether there is one reason only to want hidden states, so that the others can leave the last layer.
        picked = not asked.targets and not (sampling and asked.ends)
        wanted = index_N if sampling else batch.tokens_T[:0] if ends_M is None else ends_M
        if self._native_step is None or not self._native_step.takes(self._pool, plan):
            self._grammars.start()
        hidden_TC = self._model.forward(
            batch.tokens_T,
            batch.attention.positions_T,
            batch.attention.slots_T,
            self._pool,
            self._attention,
            plan,
            wanted if picked else None,
        )
        if sampling:
            running.sampled = batch.sampled
            running.choice = self._chooser.choose(batch.sampled.rows)
            running.logits_NV = self._model.logits(hidden_TC if picked or index_N is None else hidden_TC[index_N])
        if asked.targets or ends_M is not None:
            running.scores = Scores(
                self.scorer.targets(step.extends, hidden_TC) if asked.targets else (),
                asked.rows,
                None if ends_M is None else self.scorer.following(hidden_TC if picked else hidden_TC[ends_M]),
            )

    def _begin(self, extend: Extend, begin: Begin) -> None:
        extras = self.rows.begin(extend.row, begin, extend.prefix_slots)
        self._grammars.begin(extend.row, begin, extras)

    # --- sampling ------------------------------------------------------------------------------------------------

    def sample(self, running: Pass) -> None:
        """Launch the sampling of a pass, and leave its tokens on the device for the next one."""
        sampled, choice, logits_NV = running.sampled, running.choice, running.logits_NV
        if sampled is None or choice is None or logits_NV is None:
            return
        raw_LV = None if choice.logprobs_L is None else logits_NV[choice.logprobs_L]
        running.surplus = self._forced.ahead(sampled, choice)
        masks = None if choice.plain else self._adjust(logits_NV, sampled, choice)
        tokens_N, best_N = self._choose(logits_NV, sampled, choice, masks)
        self.rows.last_tokens.index_copy_(0, sampled.rows_N, tokens_N)
        self._lengthen(sampled, running.surplus)
        self._count(running, sampled, choice, tokens_N)
        running.packed = pack(tokens_N, best_N, raw_LV, choice)
        running.logits_NV = None

    def _choose(
        self, logits_NV: Tensor, sampled: Sampled, choice: Choice, masks: Masks | None
    ) -> tuple[Tensor, Tensor]:
        """Choose one token a row, among those that its mask allows."""
        draw = choice.draw
        uniform_M = None if draw is None else uniform(choice.keys, sampled.positions[choice.random])
        if self._native is not None and self._native.takes(logits_NV, draw):
            if masks is None:
                return self._native(logits_NV, draw, uniform_M)
            return self._native(logits_NV, draw, uniform_M, masks.words_RW, masks.lines_N)
        if masks is not None:
            masks.apply(logits_NV)
        return sample(logits_NV, draw, None if uniform_M is None else to_device(uniform_M, self.rows.device))

    def _lengthen(self, sampled: Sampled, surplus: frozenset[int]) -> None:
        """Count new tokens."""
        self.rows.generated[sampled.rows] += 1
        if surplus:
            self.rows.generated[sampled.rows[list(surplus)]] -= 1

    def _count(self, running: Pass, sampled: Sampled, choice: Choice, tokens_N: Tensor) -> None:
        """Let the penalties know of new tokens."""
        penalized = [index for index in choice.penalized if index not in running.surplus]
        if penalized:
            counted_P = to_device(penalized, tokens_N.device)
            self._penalties().count([sampled.listed[i] for i in penalized], tokens_N[counted_P].long())

    def _penalties(self) -> Penalties:
        penalties = self.rows.penalties
        assert isinstance(penalties, Penalties), "a device's rows are counted by its sampler"
        return penalties

    def _adjust(self, logits_NV: Tensor, sampled: Sampled, choice: Choice) -> Masks | None:
        """Apply penalties, bans and bias, in place; give the grammars' masks, which are still to be applied."""
        rows = sampled.listed
        if choice.penalized:
            self._penalties().apply(logits_NV, choice.penalized, [rows[i] for i in choice.penalized])
        masks, banned = self._withheld(sampled, choice)
        if banned:
            self._ban_endings(logits_NV, rows, banned)
        if choice.bias is not None:
            add_bias(logits_NV, *choice.bias)
        return masks

    def _withheld(self, sampled: Sampled, choice: Choice) -> tuple[Masks | None, list[int]]:
        """Give the grammars' masks, and the indices of the rows that are not yet long enough to end."""
        masks, complete = self._grammars.masks(sampled, choice) if choice.grammar else (None, set[int]())
        listed, generated = sampled.listed, self.rows.generated
        return masks, [
            index
            for index in choice.minimum
            if index not in complete and generated[listed[index]] < self.rows.live(listed[index]).minimum
        ]

    def _ban_endings(self, logits_NV: Tensor, sampled: list[int], banned: list[int]) -> None:
        """Keep ending tokens out of rows."""
        tokens = [self.rows.live(sampled[index]).banned for index in banned]
        indices = np.repeat(np.array(banned, np.int64), [len(each) for each in tokens])
        ban(logits_NV, to_device(indices, logits_NV.device), to_device(np.concatenate(tokens), logits_NV.device))

    # --- result --------------------------------------------------------------------------------------------------

    def collect(self, running: Pass) -> StepDone:
        """Wait for a pass's tokens, let the grammars take theirs, and tell the result."""
        result, accepting, forced = Result(), list[int](), list[Forced]()
        if running.packed is not None and running.sampled is not None and running.choice is not None:
            result = Result.read(running.packed, running.choice)
            for index, reason in result.meaningless():
                if index not in running.surplus:
                    result.fail(index, running.sampled.listed[index], reason)
            if running.choice.grammar:
                accepting, forced = self._grammars.settle(result, running.sampled, running.choice, running.surplus)
        next_logprobs = running.scores.next_logprobs(result.failures)
        return StepDone(
            number=running.number,
            rows=b"" if running.sampled is None else running.sampled.rows.astype(np.int32).tobytes(),
            tokens=result.tokens.tobytes(),
            logprobs=result.logprobs.tobytes(),
            top_tokens=result.top_tokens.tobytes(),
            top_logprobs=result.top_logprobs.tobytes(),
            input_logprobs=running.scores.input_logprobs(),
            next_logprobs=next_logprobs,
            failures=tuple(result.failures),
            accepting=np.array(accepting, np.int32).tobytes() if accepting else b"",
            forced=tuple(forced),
            forward_s=running.forward_s,
            busy_s=perf_counter() - running.started,
        )
