"""What a finished step means for its requests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..messages import GRAMMAR_CUT, Forced, InputLogprobs, StepDone, TokenLogprob
from .request import Request
from .state import State

__all__ = ["settle"]


def settle(state: State, done: StepDone) -> bool:
    """Take a step's tokens in: extend outputs, end requests, free rows.

    Tokens of ended rows are surplus, and so are those sampled behind what a grammar had forced meanwhile.

    Tells False, and does nothing, if the step is not the next one in flight: a worker's word from before a restart.
    Raises RuntimeError if the rows are not those that were sent.
    """
    flights, rows = state.flights, state.rows
    if not flights or flights[0].number != done.number:
        return False
    flight = flights.popleft()
    state.settling = flight.number
    sampled = flight.sampled
    tokens = np.frombuffer(done.tokens, np.int32)
    if done.rows != flight.packed or len(tokens) != len(sampled):
        back = np.frombuffer(done.rows, np.int32)
        raise RuntimeError(
            f"step {done.number} samples rows {sampled}, and came back with {len(tokens)} tokens of {back}"
        )
    for part in done.input_logprobs:
        _take_input_logprobs(state, part)
    for part in done.next_logprobs:
        request = rows.request[part.row]
        if request is not None and not rows.ended[part.row]:
            state.news.next_logprobs[request.number] = part.logprobs
    if state.leaving or done.failures or state.surplus >= flight.number:
        places = _wanted(state, done, sampled)
        begun = int(np.count_nonzero(places < len(flight.begun)))
        _take_tokens(state, done, sampled[places], tokens[places], places, begun)
    else:
        _take_tokens(state, done, sampled, tokens, None, len(flight.begun))
    for forced in done.forced:
        _take_forced(state, done, forced)
    for row in flight.filled:
        request = rows.request[row]
        if request is not None and not rows.ended[row]:
            state.finish(request, "length")
    state.settled = flight.number  # only now: a row freed above would miss its token of this very step
    state.release_done()
    return True


def _wanted(state: State, done: StepDone, sampled: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """End the rows that failed, and tell at which places stand the rows whose tokens are wanted."""
    rows = state.rows
    unwanted = rows.surplus[sampled] >= done.number
    state.counters.surplus_tokens += int(np.count_nonzero(unwanted | rows.ended[sampled]))
    for failure in done.failures:
        request = rows.request[failure.row]
        if request is not None and not rows.ended[failure.row]:
            state.finish(request, "error", message=failure.message)
    return (~(unwanted | rows.ended[sampled])).nonzero()[0]


def _take_tokens(
    state: State,
    done: StepDone,
    sampled: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int32],
    places: npt.NDArray[np.int64] | None,
    begun: int,
) -> None:
    """Append one token to each of `sampled`.  places: where these stand in the step's arrays, if not one by one."""
    rows, news = state.rows, state.news
    if not len(sampled):
        return
    offsets = rows.outputs[sampled]
    rows.tokens[sampled, rows.prompt[sampled] + offsets] = tokens
    after = offsets + 1
    rows.outputs[sampled] = after
    state.counters.output_tokens += len(sampled)
    news.requests.append(rows.number[sampled])
    news.offsets.append(offsets)
    news.tokens.append(tokens)
    for row in sampled[:begun].tolist() if begun else ():
        request = rows.request[row]
        assert request is not None
        news.cached[request.number] = max(request.cached, 0)
        if state.recorded.tracks:
            state.recorded.phase(request.number, "decode")
    if done.logprobs:
        _take_logprobs(state, done, sampled, tokens, places)
    over = rows.may_end(tokens) | (after >= rows.max_new[sampled])
    for index in over.nonzero()[0].tolist():
        request, token = rows.request[sampled[index]], int(tokens[index])
        assert request is not None
        if token in request.stops:
            state.finish(request, "stop", matched=token, drop=1)
        elif after[index] >= request.max_new_tokens:
            more = any(forced.row == request.row for forced in done.forced)
            state.finish(request, "length", message=GRAMMAR_CUT if more else _cut(request, done))


def _take_forced(state: State, done: StepDone, forced: Forced) -> None:
    """Append what a row's grammar leaves no choice about, up to the request's end, and let the row go on behind it."""
    rows, news, row = state.rows, state.news, forced.row
    request = rows.request[row]
    if request is None or rows.ended[row]:
        return
    offset, tokens = int(rows.outputs[row]), np.frombuffer(forced.tokens, np.int32)
    said = tokens[: request.max_new_tokens - offset]
    stops = np.isin(said, request.stops).nonzero()[0]
    if len(stops):
        said = said[: stops[0] + 1]
    count = len(said)
    first = int(rows.prompt[row]) + offset
    rows.tokens[row, first : first + count] = said
    rows.outputs[row] = offset + count
    rows.stretches[row] += 1
    state.counters.output_tokens += count
    state.counters.forced_tokens += count
    news.requests.append(np.full(count, request.number, np.int64))
    news.offsets.append(np.arange(offset, offset + count, dtype=np.int32))
    news.tokens.append(said)
    state.forward(row, done.number)
    if len(stops):
        state.finish(request, "stop", matched=int(said[-1]), drop=1)
    elif offset + count >= request.max_new_tokens:
        state.finish(request, "length", message=_cut(request, done) if count == len(tokens) else GRAMMAR_CUT)


def _cut(request: Request, done: StepDone) -> str:
    """Say that a request's text is not what its constraint wants, if so."""
    if request.sampling.constraint is None or request.row in np.frombuffer(done.accepting, np.int32):
        return ""
    return GRAMMAR_CUT


def _take_logprobs(
    state: State,
    done: StepDone,
    sampled: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int32],
    places: npt.NDArray[np.int64] | None,
) -> None:
    """Note the log-probabilities of the rows that asked for them."""
    rows = state.rows
    logprobs = np.frombuffer(done.logprobs, np.float32)
    width = len(done.top_tokens) // max(1, len(done.tokens))
    top_tokens = np.frombuffer(done.top_tokens, np.int32).reshape(-1, max(1, width))
    top_logprobs = np.frombuffer(done.top_logprobs, np.float32).reshape(-1, max(1, width))
    for index in np.flatnonzero(rows.logprobs[sampled]).tolist():
        request = rows.request[sampled[index]]
        assert request is not None
        place = index if places is None else places[index]
        wanted = min(width, request.sampling.top_logprobs_num)
        top: tuple[tuple[int, float], ...] = ()
        if wanted:
            best = top_tokens[place, :wanted].tolist(), top_logprobs[place, :wanted].tolist()
            top = tuple(zip(*best, strict=True))
        state.news.logprobs[request.number] = TokenLogprob(int(tokens[index]), float(logprobs[place]), top)


def _take_input_logprobs(state: State, part: InputLogprobs) -> None:
    """Collect a chunk's input log-probabilities, and pass them on once the prompt's last one is there."""
    rows = state.rows
    request = rows.request[part.row]
    if request is None or rows.ended[part.row] or request.logprobs_sent:
        return
    logprobs = np.frombuffer(part.logprobs, np.float32).tolist()
    first = part.start + 1
    tokens = np.frombuffer(request.prompt, np.int32)[first : first + len(logprobs)].tolist()
    width = min(len(part.top_tokens) // (4 * len(logprobs)), request.sampling.top_logprobs_num) if logprobs else 0
    if width:
        top_tokens = np.frombuffer(part.top_tokens, np.int32).reshape(len(logprobs), -1)[:, :width].tolist()
        top_logprobs = np.frombuffer(part.top_logprobs, np.float32).reshape(len(logprobs), -1)[:, :width].tolist()
        tops = [tuple(zip(ids, values, strict=True)) for ids, values in zip(top_tokens, top_logprobs, strict=True)]
    else:
        tops = [()] * len(tokens)
    request.input_logprobs += [TokenLogprob(*item) for item in zip(tokens, logprobs, tops, strict=True)]
    if len(request.input_logprobs) == request.prompt_tokens - request.first_target:
        state.news.input_logprobs[request.number] = tuple(request.input_logprobs)
        request.input_logprobs, request.logprobs_sent = [], True
