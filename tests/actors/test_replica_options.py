"""How many replicas may be had, where each lives, and what is refused before anything starts."""

from __future__ import annotations

import argparse
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import callboard as cb
from callboard.actors.engine_options import EngineOptions, divided_threads, find_device
from callboard.actors.errors import InvalidRequest
from callboard.actors.server_args import ServerArgs, engine_arguments
from callboard.actors.totals import totals
from callboard.commands.engine_arguments import add_engine_arguments, make_engine

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("replicas", [0, -1, 17, 1000])
def test_a_number_out_of_range_is_refused_by_its_name(replicas: int) -> None:
    with pytest.raises(InvalidRequest, match=f"replicas: {replicas} is outside 1 to 16"):
        cb.Engine("embedded", replicas=replicas)
    with pytest.raises(InvalidRequest, match=f"dp_size: {replicas} is outside 1 to 16"):
        cb.Engine("embedded", dp_size=replicas)


@pytest.mark.parametrize("replicas", ["2", 2.5, None])
def test_what_is_no_number_is_refused_by_its_name(replicas: Any) -> None:
    with pytest.raises(InvalidRequest, match="replicas"):
        EngineOptions(replicas=replicas).verify()


def test_one_device_is_not_divided_among_several() -> None:
    with pytest.raises(InvalidRequest, match="device: 'cuda:1' is one device; 2 replicas take 'cuda', one each"):
        cb.Engine("embedded", device="cuda:1", replicas=2)
    assert cb.Engine("embedded", device="cuda:1").options.device_of(0) == "cuda:1"


def gpus(monkeypatch: pytest.MonkeyPatch, *gib: int) -> None:
    """Let torch see GPUs of so much memory each."""

    def properties(device: str) -> Any:
        return SimpleNamespace(total_memory=gib[int(device.partition(":")[2] or 0)] << 30)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gib))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gib))
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)


def test_each_replica_has_a_gpu_of_its_own_and_the_smallest_tells_how_many_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus(monkeypatch, 140, 80, 24)
    for device in ("cuda", "auto"):
        two = EngineOptions(model="some/model", device=device, replicas=2)
        assert find_device(two) == ("cuda", 80 << 30)
        on = two.on(*find_device(two))
        assert [on.device_of(replica) for replica in range(2)] == ["cuda:0", "cuda:1"]
        assert on.max_rows == 1024
    three = EngineOptions(model="some/model", replicas=3)
    assert three.on(*find_device(three)).max_rows == 256
    one = EngineOptions(model="some/model")
    assert (find_device(one), one.on(*find_device(one)).device_of(0)) == (("cuda", 140 << 30), "cuda")


def test_fewer_gpus_than_replicas_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 80, 80)
    with pytest.raises(InvalidRequest, match="replicas: 4 take a GPU each; torch sees 2 CUDA devices here"):
        find_device(EngineOptions(model="some/model", device="cuda", replicas=4))


async def test_they_are_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 80)
    engine = cb.Engine("embedded", device="cuda", replicas=2)
    with pytest.raises(InvalidRequest, match="replicas: 2 take a GPU each; torch sees 1 CUDA devices here"):
        async with engine:
            pass
    assert engine.health()["reason"] == "the engine is not running"


def test_without_a_gpu_all_live_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch)
    options = EngineOptions(model="some/model", replicas=3)
    on = options.on(*find_device(options))
    assert [on.device_of(replica) for replica in range(3)] == ["cpu"] * 3


@pytest.mark.parametrize(
    ("replicas", "threads", "there", "each"), [(1, None, 8, None), (2, None, 8, 4), (3, 8, 1, 2), (4, None, 2, 1)]
)
def test_on_a_cpu_they_divide_its_threads(
    monkeypatch: pytest.MonkeyPatch, replicas: int, threads: int | None, there: int, each: int | None
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: there)
    assert divided_threads(EngineOptions(device="cpu", replicas=replicas, threads=threads)) == each


def test_on_gpus_nothing_is_said_of_threads() -> None:
    assert divided_threads(EngineOptions(device="cuda", replicas=2)) is None


def test_the_names_that_others_have_for_it_mean_the_same() -> None:
    assert engine_arguments({"dp_size": 2}) == engine_arguments({"data_parallel_size": 2}) == {"replicas": 2}
    assert cb.Engine(**dataclasses.asdict(ServerArgs("embedded", dp_size=3))).options.replicas == 3
    assert cb.Engine(**dataclasses.asdict(ServerArgs("embedded"))).options.replicas == 1


@pytest.mark.parametrize("name", ["--replicas", "--dp-size", "--data-parallel-size"])
def test_the_command_line_takes_it_by_each_name(name: str) -> None:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    assert make_engine(parser.parse_args([name, "2"])).options.replicas == 2
    assert make_engine(parser.parse_args([])).options.replicas == 1
    with pytest.raises(InvalidRequest, match="replicas: 0 is outside"):
        make_engine(parser.parse_args([name, "0"]))


def test_totals_are_sums_but_for_shares_means_and_quantiles() -> None:
    told = totals(
        [
            {"requests": 3, "prompt_tokens": 100, "cached_tokens": 50, "hit_rate": 0.5, "largest_group": 4, "groups": 1,
             "group_members": 4, "mean_group_size": 4.0, "last_second": {"device_busy": 1.0, "steps": 7},
             "recent": {"gap_us_p90": 5.0}, "on": "cuda:0"},
            {"requests": 1, "prompt_tokens": 300, "cached_tokens": 0, "hit_rate": 0.0, "largest_group": 9, "groups": 3,
             "group_members": 12, "mean_group_size": 4.0, "last_second": {"device_busy": 0.5, "steps": 2},
             "recent": {}, "graphs": 2, "on": "cuda:1"},
        ]
    )  # fmt: skip
    assert told == {
        "requests": 4, "prompt_tokens": 400, "cached_tokens": 50, "hit_rate": 0.125, "largest_group": 9, "groups": 4,
        "group_members": 16, "mean_group_size": 4.0, "last_second": {"device_busy": 0.75, "steps": 9},
        "recent": {"gap_us_p90": 5.0}, "graphs": 2, "on": "cuda:0",
    }  # fmt: skip


def test_the_total_of_one_is_what_it_tells() -> None:
    told = {"hit_rate": 0.3, "steps": 4, "nested": {"device_busy": 0.5}}
    assert totals([told]) == told
