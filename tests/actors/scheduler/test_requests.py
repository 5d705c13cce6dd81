"""What a request is promised: its tokens, its end, its log-probabilities, and what the cache saves it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from callboard.actors.messages import Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.request import derived_seed

from ...support.fake_worker import expected, expected_input_logprobs
from ...support.schedule_driver import ScheduleDriver, pack

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def driver(**options: Any) -> ScheduleDriver:
    chosen = {"slots": 256, "rows": 4, "chunk_tokens": 32, "share_tokens": 1, **options}
    return ScheduleDriver(SchedulerOptions(**chosen))


def sampling(count: int, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": count, "seed": 5, **more})


def decoded(step: Step) -> list[int]:
    return np.frombuffer(step.decode_rows, np.int32).tolist()


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_a_request_gets_its_tokens_and_one_end(in_flight: int) -> None:
    run = driver(in_flight=in_flight)
    asked = run.submit(7, PROMPT, sampling(5))
    run.run()
    assert asked.output == expected(PROMPT, 5, 5)
    assert asked.finish is not None
    assert (asked.finish.reason, asked.finish.completion_tokens) == ("length", 5)
    assert run.state.counters.surplus_tokens == 0  # its length was known in advance
    assert len(run.steps) == 5
    run.verify()


def test_two_steps_are_in_flight_and_no_more() -> None:
    run = driver()
    run.submit(0, PROMPT, sampling(10))
    assert run.send() is not None
    second = run.send()
    assert second is not None
    assert decoded(second) == [0]  # sent before the first token is known
    assert run.send() is None


def test_a_stop_token_ends_it_and_the_surplus_is_dropped() -> None:
    run = driver()
    right = expected(PROMPT, 5, 20)
    asked = run.submit(0, PROMPT, sampling(20, stop_token_ids=(right[6],)))
    run.run()
    cut = right.index(right[6]) + 1
    assert asked.output == right[:cut]
    assert asked.finish is not None
    assert (asked.finish.reason, asked.finish.matched, asked.finish.drop) == ("stop", right[6], 1)
    assert run.state.counters.surplus_tokens == 1
    run.verify()


def test_end_of_sequence_ends_it_unless_it_is_to_be_ignored() -> None:
    run = driver()
    right = expected(PROMPT, 5, 12)
    ended = run.submit(0, PROMPT, sampling(12), eos=(right[3],))
    deaf = run.submit(1, PROMPT, sampling(12, ignore_eos=True), eos=(right[3],))
    run.run()
    assert ended.output == right[: right.index(right[3]) + 1]
    assert deaf.output == right
    run.verify()


def test_a_stop_token_as_the_last_allowed_one_is_a_stop() -> None:
    run = driver()
    right = expected(PROMPT, 5, 3)
    asked = run.submit(0, PROMPT, sampling(3, stop_token_ids=(right[2],)))
    run.run()
    assert asked.finish is not None
    assert asked.finish.reason == "stop"


def test_no_new_tokens_only_fills_the_cache() -> None:
    run = driver(chunk_tokens=3)
    asked = run.submit(0, PROMPT, sampling(0))
    run.run()
    assert asked.output == []
    assert asked.finish is not None
    assert asked.finish.reason == "length"
    assert not any(extend.sample for step in run.steps for extend in step.extends)
    assert run.state.memory.tree.known(pack(PROMPT)) == len(PROMPT)


def test_a_long_prompt_is_computed_in_chunks_beside_decoding_rows() -> None:
    run = driver(chunk_tokens=8)
    run.submit(0, PROMPT[:4], sampling(20))
    run.send()
    long = run.submit(1, list(range(30)), sampling(2))
    run.run()
    chunks = [
        (extend.start, len(extend.tokens) // 4, extend.sample) for step in run.steps[1:] for extend in step.extends
    ]
    assert chunks == [(0, 7, False), (7, 7, False), (14, 7, False), (21, 7, False), (28, 2, True)]
    assert all(decoded(step) == [0] for step in run.steps[1:6])
    assert long.output == expected(list(range(30)), 5, 2)


def test_a_prompt_in_the_cache_is_not_computed_again_but_for_its_last_token() -> None:
    run = driver()
    run.submit(0, PROMPT, sampling(1))
    run.run()
    again = run.submit(1, PROMPT, sampling(4))
    run.run()
    assert again.finish is not None
    assert again.finish.cached_tokens == len(PROMPT) - 1
    (extend,) = run.steps[1].extends
    assert (extend.start, len(extend.tokens) // 4, extend.sample) == (7, 1, True)
    run.verify()


def test_a_conversation_goes_on_from_its_own_output() -> None:
    run = driver()
    first = run.submit(0, PROMPT, sampling(6))
    run.run()
    follow = [*PROMPT, *first.output, 8, 8]
    second = run.submit(1, follow, sampling(2))
    run.run()
    assert second.finish is not None
    assert second.finish.cached_tokens == len(PROMPT) + 5  # the last token sampled was never written
    run.verify()


def test_a_stopped_answer_is_kept_with_its_last_token_if_that_was_written() -> None:
    run = driver()
    right = expected(PROMPT, 5, 20)
    first = run.submit(0, PROMPT, sampling(20, stop_token_ids=(right[4],)))
    run.run()
    second = run.submit(1, [*PROMPT, *first.output, 8], sampling(2))
    run.run()
    assert second.finish is not None
    assert second.finish.cached_tokens == len(PROMPT) + len(first.output)
    run.verify()


def test_branches_that_arrive_together_compute_their_prefix_once() -> None:
    run = driver(rows=8)
    branches = [run.submit(number, [*range(30), 50 + number], sampling(3)) for number in range(6)]
    run.run()
    assert [len(step.extends) for step in run.steps[:2]] == [1, 5]
    assert [branch.finish.cached_tokens for branch in branches if branch.finish] == [0, 30, 30, 30, 30, 30]
    run.verify()


def test_a_short_common_prefix_is_not_worth_a_step() -> None:
    run = driver(share_tokens=16)
    for number in range(3):
        run.submit(number, [*range(10), 50 + number], sampling(3))
    run.run()
    assert len(run.steps[0].extends) == 3
    run.verify()


@pytest.mark.parametrize("start", [0, 1, 3, len(PROMPT) - 1, len(PROMPT)])
@pytest.mark.parametrize("chunk", [2, 32])
@pytest.mark.parametrize("count", [0, 2])
def test_input_logprobs_come_from_their_start_also_out_of_the_cache(start: int, chunk: int, count: int) -> None:
    run = driver(chunk_tokens=chunk)
    run.submit(0, PROMPT, sampling(1))
    run.run()
    asked = run.submit(1, PROMPT, sampling(count, logprob_start=start))
    run.run()
    right = expected_input_logprobs(PROMPT, start)
    assert [(item.token, item.logprob) for item in asked.input_logprobs] == right
    assert asked.finish is not None
    assert asked.finish.cached_tokens == min(len(PROMPT) - 1, max(start, 1) - 1)
    run.verify()


def test_logprobs_come_to_those_that_asked() -> None:
    run = driver()
    plain = run.submit(0, PROMPT, sampling(4))
    asking = run.submit(1, PROMPT[:5], sampling(4, return_logprob=True))
    run.run()
    assert [item.token for item in asking.logprobs] == asking.output
    assert plain.logprobs == []


def test_an_abort_frees_everything_within_two_steps() -> None:
    run = driver()
    run.submit(0, PROMPT, sampling(50))
    other = run.submit(1, [7, 7, 7], sampling(50))
    for _ in range(4):
        run.send()
        run.send()
        run.done()
    run.abort(0)
    sent = len(run.steps)
    run.done()
    run.done()
    assert len(run.steps) == sent
    assert run.asked[0].finish is not None
    assert run.asked[0].finish.reason == "abort"
    assert run.state.rows.free == 3
    assert run.state.memory.tree.known(pack(PROMPT)) == len(PROMPT)  # cached, held by nobody
    step = run.send()
    assert step is not None
    assert np.frombuffer(step.retired_rows, np.int32).tolist() == [0]
    run.run()
    assert other.output == expected([7, 7, 7], 5, 50)
    run.verify()


def test_a_waiting_request_can_be_aborted_and_unknown_ones_are_ignored() -> None:
    run = driver(rows=1)
    run.submit(0, PROMPT, sampling(5))
    run.send()
    run.submit(1, PROMPT, sampling(5))
    run.abort(1)
    run.abort(1)
    run.state.abort(99)
    run.run()
    assert run.asked[1].output == []
    run.verify()


def test_a_stopped_request_gets_no_terminal_event() -> None:
    run = driver()
    run.submit(0, PROMPT, sampling(50))
    for _ in range(3):
        run.send()
        run.done()
    run.stop(0)
    run.stop(0)
    run.run()
    assert run.asked[0].finish is None
    run.verify()


def test_abort_all_ends_every_request() -> None:
    run = driver(rows=2)
    for number in range(5):
        run.submit(number, [number] * 5, sampling(30))
    run.send()
    for asked in run.asked.values():
        asked.aborted = True
    run.state.abort_all()
    run.collect()
    run.run()
    assert all(asked.finish is not None and asked.finish.reason == "abort" for asked in run.asked.values())
    run.verify()


def test_a_row_that_fails_ends_alone() -> None:
    run = ScheduleDriver(
        SchedulerOptions(slots=256, rows=4),
        failing=lambda number, position: "a NaN" if (number, position) == (1, 10) else None,
    )
    good, bad = run.submit(0, PROMPT, sampling(6)), run.submit(1, PROMPT[:7], sampling(6))
    run.run()
    assert bad.finish is not None
    assert (bad.finish.reason, bad.finish.message, len(bad.output)) == ("error", "a NaN", 3)
    assert good.output == expected(PROMPT, 5, 6)
    run.verify()


def test_what_a_failed_row_had_put_into_the_cache_is_not_shared_on() -> None:
    run = ScheduleDriver(
        SchedulerOptions(slots=256, rows=4),
        failing=lambda number, position: "a NaN" if (number, position) == (1, 10) else None,
    )
    bad = run.submit(1, PROMPT[:7], sampling(6))
    run.run()
    again = run.submit(2, PROMPT[:7], sampling(6))
    run.run()
    assert bad.finish is not None
    assert bad.finish.reason == "error"
    assert again.finish is not None
    assert (again.finish.cached_tokens, again.output) == (0, expected(PROMPT[:7], 5, 6))
    run.verify()


def test_what_can_never_fit_is_told_with_numbers() -> None:
    run = driver(slots=20)
    asked = run.submit(0, PROMPT, sampling(13))
    assert asked.finish is not None
    assert asked.finish.reason == "error"
    assert asked.finish.message == "8 prompt tokens and max_new_tokens 13 need more than the 20 slots there are"
    fits = run.submit(1, PROMPT, sampling(12))
    run.run()
    assert fits.output == expected(PROMPT, 5, 12)


def test_an_empty_prompt_is_an_error() -> None:
    run = driver()
    asked = run.submit(0, [], sampling(3))
    assert asked.finish is not None
    assert asked.finish.reason == "error"


def test_a_replayed_request_goes_on_behind_its_output() -> None:
    right = expected(PROMPT, 5, 9)
    run = driver()
    asked = run.submit(0, PROMPT, sampling(9), output=right[:4])
    run.run()
    assert asked.output == right
    begin = run.steps[0].extends[0].begin
    assert begin is not None
    assert begin.output == pack(right[:4])
    run.verify()


def test_a_replayed_request_that_was_over_ends_at_once() -> None:
    right = expected(PROMPT, 5, 9)
    run = driver()
    whole = run.submit(0, PROMPT, sampling(9), output=right)
    stopped = run.submit(1, PROMPT, sampling(9, stop_token_ids=(right[2],)), output=right[:3])
    assert whole.finish is not None
    assert whole.finish.reason == "length"
    assert stopped.finish is not None
    assert (stopped.finish.reason, stopped.finish.matched) == ("stop", right[2])
    assert run.send() is None


def test_a_request_sent_twice_runs_once() -> None:
    run = driver()
    asked = run.submit(0, PROMPT, sampling(3))
    run.asked.pop(0)
    run.submit(0, PROMPT, sampling(3))
    run.asked[0] = asked
    run.run()
    assert run.state.counters.requests == 1
    run.verify()


def test_the_worker_is_told_what_it_needs_and_no_more() -> None:
    run = driver()
    run.submit(0, PROMPT, sampling(3), eos=(60,))
    run.submit(
        1,
        [*PROMPT, 1],
        sampling(3, repetition_penalty=1.2, min_new_tokens=2, stop_token_ids=(70,), seed=None),
        eos=(60,),
    ).sampling = sampling(3, seed=derived_seed(1), stop_token_ids=(70,))
    run.run()
    plain, rich = (extend.begin for step in run.steps for extend in step.extends if extend.begin)
    assert (plain.seed, plain.context, plain.eos) == (5, b"", b"")
    assert (rich.seed, rich.context, rich.eos) == (derived_seed(1), pack([*PROMPT, 1]), pack([60, 70]))
    run.verify()


def test_derived_seeds_have_63_bits_and_differ() -> None:
    seeds = {derived_seed(number) for number in range(1000)}
    assert len(seeds) == 1000
    assert max(seeds) < 1 << 63


def test_a_shortage_retracts_the_youngest_and_it_goes_on_where_it_was() -> None:
    run = driver(slots=40, rows=4, reserve_all=0, reserve_least=1)
    run.state.estimate.share = 0.0
    asked = [run.submit(number, [number, 1, 2], sampling(30)) for number in range(3)]
    run.run()
    retracted = [item.finish.retractions for item in asked if item.finish]
    assert retracted[0] == 0
    assert sum(retracted) > 0
    assert [item.output for item in asked] == [expected([number, 1, 2], 5, 30) for number in range(3)]
    assert run.state.counters.prompt_tokens == 9  # later lives do not count
    run.verify()


def test_flushing_leaves_what_a_request_holds() -> None:
    run = driver()
    run.submit(0, PROMPT, sampling(1))
    run.run()
    run.submit(1, [9, 9, 9], sampling(20))
    run.send()
    flushed = run.state.flush()
    assert (flushed.freed, flushed.held) == (len(PROMPT), 3)
    run.run()
    run.verify()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slots", 0),
        ("rows", 0),
        ("chunk_tokens", -1),
        ("in_flight", 0),
        ("window", 0),
        ("policy", "random"),
        ("slots", 2.5),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        ScheduleDriver(SchedulerOptions(**{"slots": 10, field: value}))  # type: ignore[arg-type]


def test_a_row_of_log_probabilities_comes_with_the_end_and_not_after_an_abort() -> None:
    driver = ScheduleDriver(SchedulerOptions(slots=64, chunk_tokens=4))
    fill = SamplingParams(max_new_tokens=0, seed=1)
    kept = driver.submit(1, [1, 2, 3, 4, 5, 6], fill, next_logprobs=True)
    left = driver.submit(2, [7, 8], fill, next_logprobs=True)
    while driver.send() is not None:
        pass
    driver.abort(2)
    driver.run()
    driver.verify()
    assert kept.next_logprobs
    assert not left.next_logprobs
