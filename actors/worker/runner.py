"""Run one Step: forward pass, masks, sampling, result; the model's thread calls it and nobody else.

The three parts are apart so that a device can be kept busy: `forward` only launches work; `sample` fills the grammars'
masks on the host while the device runs, then launches the rest; `collect` is the one place that waits for the device.
Masks need the tokens of the step before, so the order with two steps on their way is forward(k + 1), collect(k),
sample(k + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.interface import Attention
from ...kernels.kv_pool import KVPool
from ...kernels.masks import ban
from ...kernels.native.draw import native_draw
from ...kernels.random import uniform
from ...kernels.sampling import add_bias, log_probabilities, sample, top
from ...models.model import Model
from ..errors import InvalidRequest
from ..grammar import GrammarCache
from ..messages import Begin, Extend, Forced, InputLogprobs, NextLogprobs, RowFailure, Step, StepDone
from .batch import Batch, Sampled, build_batch
from .choose import Choice, Chooser
from .forced import FastForward
from .masks import Masks, RowMasks
from .penalties import Penalties
from .result import NO_NUMBERS, Packed, Result, pack
from .rows import Extras, Rows
from .to_device import to_device

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["Pass", "Runner"]


@dataclass(slots=True)
class Pass:
    """A step on its way.  sampled and choice are None if no row of it samples.

    surplus: indices of sampled rows whose tokens nobody wants.
    next_rows: the rows whose next token's log-probabilities are wanted, all V of them in next_MV.
    forward_s: the device's time.  gap_s: how long the device had nothing to do before.  launch_s: what the host took to
    launch it.  waited_s: how long `collect` waited for the device.  prompt_tokens: computed by it.
    """

    number: int
    started: float
    sampled: Sampled | None = None
    choice: Choice | None = None
    surplus: frozenset[int] = frozenset()
    logits_NV: Tensor | None = None
    packed: Packed | None = None
    scored: tuple[tuple[Extend, Packed], ...] = ()
    next_rows: tuple[int, ...] = ()
    next_MV: Tensor | None = None
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
        self._grammars = grammars
        self._chooser = Chooser(rows)
        self._masks: RowMasks | None = None
        self._native = native_draw(rows.device)
        self._forward = FastForward(rows, enabled=fast_forward)
        # How many logits are computed at once where a prompt's tokens are scored: 64 MiB of float32.
        self._scored_at_once = max(1, (16 << 20) // model.config.vocabulary)

    def statistics(self) -> dict[str, Any]:
        """Tell what only this kind of runner knows; called from any thread."""
        return {}

    def end(self) -> None:
        """End what runs beside it."""
        if self._masks is not None:
            self._masks.end()

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
                self._forward.resume(extend)

    def _launch(self, running: Pass, step: Step) -> None:
        batch = build_batch(step, self.rows)
        if batch is not None:
            self._compute(running, step, batch)

    def _compute(self, running: Pass, step: Step, batch: Batch) -> None:
        """Launch a forward pass whose inputs are on the device, and the logits and scores that it is wanted for."""
        plan, index_N, sampling = self._attention.plan(batch.attention), batch.index_N, len(batch.sampled.rows) > 0
        scoring = any(extend.targets for extend in step.extends)
        ahead = _ends(step.extends)
        wanted_N = None
        if not scoring and sampling and not ahead:
            wanted_N = index_N
        elif not scoring and ahead and not sampling:  # nobody generates beside those who only look ahead
            wanted_N = to_device([end for _, end in ahead], self.rows.device)
        hidden_TC = self._model.forward(
            batch.tokens_T,
            batch.attention.positions_T,
            batch.attention.slots_T,
            self._pool,
            self._attention,
            plan,
            wanted_N,
        )
        if sampling:
            running.sampled = batch.sampled
            running.choice = self._chooser.choose(batch.sampled.rows)
            picked = wanted_N is not None or index_N is None
            running.logits_NV = self._model.logits(hidden_TC if picked else hidden_TC[index_N])
        if scoring:
            running.scored = self._score(step.extends, hidden_TC)
        if ahead:
            running.next_rows = tuple(row for row, _ in ahead)
            picked = wanted_N is not None
            hidden_MC = hidden_TC if picked else hidden_TC[to_device([end for _, end in ahead], hidden_TC.device)]
            running.next_MV = self._model.logits(hidden_MC).float().log_softmax(dim=-1)

    def _begin(self, extend: Extend, begin: Begin) -> None:
        extras = self.rows.begin(extend.row, begin, extend.prefix_slots)
        constraint = begin.sampling.constraint
        if constraint is None:
            return
        if self._grammars is None:
            extras.failure = f"{constraint.kind}: this worker was started without grammars"
            return
        try:
            extras.matcher = self._grammars.matcher(constraint)
        except InvalidRequest as error:
            extras.failure = str(error)
            return
        if not extras.matcher.consume_tokens(np.frombuffer(begin.output, np.int32).tolist()):
            extras.failure = f"{constraint.kind}: the tokens generated so far do not match it"
            return
        if self._masks is None:
            beside = self.rows.device.type == "cpu"
            self._masks = RowMasks(self.rows.max_rows, self._grammars.mask_words, beside=beside)
        self._masks.begin([(extras.matcher, extend.row)])

    def _score(self, extends: tuple[Extend, ...], hidden_TC: Tensor) -> tuple[tuple[Extend, Packed], ...]:
        """Compute log-probabilities of the extends' targets."""
        scored: list[tuple[Extend, Packed]] = []
        offset = 0
        for extend in extends:
            targets = np.frombuffer(extend.targets, np.int32)
            if len(targets):
                first = offset + extend.targets_start - extend.start
                width = self.rows.live(extend.row).top_logprobs
                scored.append((extend, self._score_one(hidden_TC[first : first + len(targets)], targets, width)))
            offset += len(extend.tokens) // 4
        return tuple(scored)

    def _score_one(self, hidden_MC: Tensor, targets: np.ndarray, width: int) -> Packed:
        targets_M = to_device(targets.astype(np.int64), hidden_MC.device)
        parts: list[tuple[Tensor, ...]] = []
        for hidden_BC, targets_B in zip(
            hidden_MC.split(self._scored_at_once), targets_M.split(self._scored_at_once), strict=True
        ):
            parts.append(self._log_probabilities(self._model.logits(hidden_BC), targets_B, width))
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        nothing = hidden_MC.new_empty(0, dtype=torch.float32)
        return Packed.of(targets_M[:0], nothing, *columns)

    def _log_probabilities(self, logits_BV: Tensor, targets_B: Tensor, width: int) -> tuple[Tensor, ...]:
        """Give the targets' log-probabilities, and if width is not 0 the most likely tokens with theirs."""
        logprobs_BV, chosen_B = log_probabilities(logits_BV.float(), targets_B)
        return (chosen_B, *top(logprobs_BV, width)) if width else (chosen_B,)

    # --- sampling ------------------------------------------------------------------------------------------------

    def sample(self, running: Pass) -> None:
        """Launch the sampling of a pass, and leave its tokens on the device for the next one."""
        sampled, choice, logits_NV = running.sampled, running.choice, running.logits_NV
        if sampled is None or choice is None or logits_NV is None:
            return
        raw_LV = None if choice.logprobs_L is None else logits_NV[choice.logprobs_L]
        running.surplus = self._forward.ahead(sampled, choice)
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
            return self._native(logits_NV, draw, uniform_M, masks.words_RW, masks.lines_of(len(logits_NV)))
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
        masks, complete = self._take_masks(sampled, choice) if choice.grammar else (None, set[int]())
        listed, generated = sampled.listed, self.rows.generated
        return masks, [
            index
            for index in choice.minimum
            if index not in complete and generated[listed[index]] < self.rows.live(listed[index]).minimum
        ]

    def _take_masks(self, sampled: Sampled, choice: Choice) -> tuple[Masks | None, set[int]]:
        """Give the grammars' masks, and the rows whose text is complete and can only end."""
        bound: list[tuple[int, Extras, LLMatcher]] = []
        for index in choice.grammar:
            extras = self.rows.live(sampled.listed[index])
            if extras.matcher is not None and extras.forced is None and not extras.failure:
                bound.append((index, extras, extras.matcher))
        if not bound or self._masks is None:
            return None, set()
        indices = [index for index, *_ in bound]
        lines = [sampled.listed[index] for index in indices]
        words_RW = self._masks.take([(matcher, line) for (*_, matcher), line in zip(bound, lines, strict=True)])
        complete: set[int] = set()
        for index, extras, matcher in bound:
            if matcher.is_error():
                extras.failure = f"grammar: {_first_line(matcher.get_error())}"
            elif matcher.is_stopped():
                complete.add(index)
        return Masks(indices, lines, words_RW), complete

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
            accepting, forced = self._settle(result, running, running.sampled, running.choice)
        next_logprobs = _next_logprobs(running, result)
        return StepDone(
            number=running.number,
            rows=b"" if running.sampled is None else running.sampled.rows.astype(np.int32).tobytes(),
            tokens=result.tokens.tobytes(),
            logprobs=result.logprobs.tobytes(),
            top_tokens=result.top_tokens.tobytes(),
            top_logprobs=result.top_logprobs.tobytes(),
            input_logprobs=tuple(_input_logprobs(extend, packed) for extend, packed in running.scored),
            next_logprobs=next_logprobs,
            failures=tuple(result.failures),
            accepting=np.array(accepting, np.int32).tobytes() if accepting else b"",
            forced=tuple(forced),
            forward_s=running.forward_s,
            busy_s=perf_counter() - running.started,
        )

    def _settle(
        self, result: Result, running: Pass, sampled: Sampled, choice: Choice
    ) -> tuple[list[int], list[Forced]]:
        """Give the grammars their tokens; tells the rows whose text may end here, and what is forced on which."""
        accepting, forced = list[int](), list[Forced]()
        changed: list[tuple[LLMatcher, int]] = []
        for index, reason in result.meaningless():
            if index not in running.surplus:
                result.fail(index, sampled.listed[index], reason)
        for index in choice.grammar:
            if index in running.surplus:
                continue
            row = sampled.listed[index]
            extras = self.rows.live(row)
            token = int(result.tokens[index])
            if token >= 0 and not extras.failure and extras.matcher is not None:
                if extras.matcher.consume_token(token):
                    told = self._forward.look(row, extras.matcher)
                    said = 0
                    if told is not None:
                        forced.append(told)
                        said = len(told.tokens) // 4
                    # 30 us for a schema: only where a limit may end the text
                    if self.rows.generated[row] + said >= extras.limit and extras.matcher.is_accepting():
                        accepting.append(row)
                    changed.append((extras.matcher, row))
                    continue
                extras.failure = f"grammar: {_first_line(extras.matcher.get_error())}"
            if extras.failure:
                result.fail(index, row, extras.failure)
        if changed and self._masks is not None:
            self._masks.begin(changed)
        return accepting, forced


def _input_logprobs(extend: Extend, packed: Packed) -> InputLogprobs:
    read = packed.read()
    return InputLogprobs(
        extend.row,
        extend.targets_start,
        read.logprobs.tobytes(),
        read.top_tokens.tobytes(),
        read.top_logprobs.tobytes(),
    )


def _ends(extends: tuple[Extend, ...]) -> list[tuple[int, int]]:
    """Give the rows that ask for the log-probabilities of all tokens behind them, and where in the step they end."""
    found: list[tuple[int, int]] = []
    end = 0
    for extend in extends:
        end += len(extend.tokens) // 4
        if extend.next_logprobs:
            found.append((extend.row, end - 1))
    return found


def _next_logprobs(running: Pass, result: Result) -> tuple[NextLogprobs, ...]:
    """Wait for the device; a row that is not numbers fails instead."""
    if running.next_MV is None:
        return ()
    found: list[NextLogprobs] = []
    for row, logprobs_V in zip(running.next_rows, running.next_MV.cpu().numpy(), strict=True):
        if np.isnan(logprobs_V).any():
            result.failures.append(RowFailure(row, NO_NUMBERS))
        else:
            found.append(NextLogprobs(row, logprobs_V.tobytes()))
    return tuple(found)


def _first_line(error: str) -> str:
    return error.split("\n", 1)[0][:300]
