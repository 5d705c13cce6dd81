"""Several keys: each has a tenant, and a tenant learns nothing of another, nor waits for all that it asks."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.actors.engine import Engine
from callboard.actors.gateway import ApiKey, GatewayOptions, read_api_keys
from callboard.actors.gateway.authority import Authority, Caller
from callboard.actors.gateway.salts import salt_of

from ..collector import until
from ..tiny_model import write_tiny_model
from .fake_engine import FakeEngine
from .serving import Served, serving

pytestmark = pytest.mark.anyio

A, B, ADMIN, PLAIN = "key-of-alice-0001", "key-of-bob-000002", "key-of-the-house-3", "key-of-anybody-04"
KEYS = (ApiKey("alice", A), ApiKey("bob", B))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(served: Served, key: str, path: str = "/generate", **body: Any) -> Any:
    return await served.client.post(path, json=body, headers=bearer(key))


# --- who is who -------------------------------------------------------------------------------------------------------


async def test_the_engine_hears_of_the_tenant_and_never_of_the_key():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine, api_keys=KEYS, api_key=PLAIN, admin_api_key=ADMIN) as served:
            for key in (A, B, PLAIN, ADMIN):
                assert (await ask(served, key, text="x")).status_code == 200
            await ask(served, A, "/v1/completions", prompt="x", stream=True)
            await ask(served, B, "/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
            wrong = [await ask(served, key, text="x") for key in ("x", A[:-1], A + "x", "alice", A.upper())]
    assert [tenant for tenant, _ in engine.whose] == ["alice", "bob", "", "", "alice", "bob"]
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in wrong} == {(401, "invalid_api_key")}
    assert len({reply.text for reply in wrong}) == 1, "all wrong keys are told the same"


@pytest.mark.parametrize(
    ("options", "may"),
    [({"api_keys": KEYS}, ""), ({"api_keys": KEYS, "api_key": PLAIN}, PLAIN),
     ({"api_keys": KEYS, "api_key": PLAIN, "admin_api_key": ADMIN}, ADMIN),
     ({"api_keys": KEYS, "admin_api_key": ADMIN}, ADMIN)],
)  # fmt: skip
async def test_no_tenant_administers(options: dict[str, Any], may: str):
    with anyio.fail_after(20):
        async with serving(FakeEngine(), **options) as served:
            for key in (A, B, PLAIN, ADMIN):
                reply = await served.client.post("/flush_cache", headers=bearer(key))
                assert reply.status_code == (200 if key == may else 401), key


async def test_each_key_is_compared_with_all_in_the_same_time(monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    authority = Authority(GatewayOptions(api_keys=KEYS, api_key=PLAIN, admin_api_key=ADMIN))
    monkeypatch.setattr(hmac, "compare_digest", compare)
    callers: list[Caller | None] = []
    for header in (
        f"Bearer {A}",
        f"bearer {B}",
        f"Bearer {ADMIN}",
        "Bearer x",
        "",
        f"Basic {A}",
        "Bearer " + "x" * 999,
    ):
        compared.clear()
        callers.append(authority.caller(header.encode()))
        assert len(compared) == 4, "found or not, first or last: as many comparisons"
        assert {len(side) for pair in compared for side in pair} == {32}, "of equal length, whatever was sent"
        assert not any(key.encode() in pair for key in (A, B, ADMIN, PLAIN) for pair in compared)
    assert callers == [Caller("alice", False), Caller("bob", False), Caller("", True), None, None, None, None]


async def test_a_tenant_ends_its_own_requests_alone():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine, api_keys=KEYS) as served, anyio.create_task_group() as group:
            replies: dict[str, Any] = {}

            async def hang(key: str) -> None:
                replies[key] = await ask(served, key, text="SILENT", rid="1")

            group.start_soon(hang, A)
            group.start_soon(hang, B)
            await until(lambda: engine.started == 2)
            assert (await ask(served, A, "/abort_request", rid="1")).json() == {"success": True}
            await until(lambda: A in replies)
            assert replies[A].status_code == 499
            assert engine.ended == ["failed"], "bob's, of the same name, goes on"
            await ask(served, B, "/abort_request", rid="1")


async def test_who_the_tenants_are_is_told_to_the_administrator_alone():
    with anyio.fail_after(20):
        async with serving(FakeEngine(), api_keys=KEYS, admin_api_key=ADMIN) as served:
            for key in (A, A, B, ADMIN, "nobody's"):
                await ask(served, key, text="x")
            pages = {key: (await served.client.get("/metrics", headers=bearer(key))).text for key in (ADMIN, A)}
            info = (await served.client.get("/server_info", headers=bearer(A))).json()
    assert 'callboard_http_tenant_exchanges_total{tenant="alice"} 2.0' in pages[ADMIN]
    assert 'callboard_http_tenant_exchanges_total{tenant="bob"} 1.0' in pages[ADMIN]
    assert "bob" not in pages[A]
    assert "bob" not in str(info)
    assert info["guarded"] is True
    assert "callboard_http_exchanges" in pages[A]


# --- salts ------------------------------------------------------------------------------------------------------------


async def test_salts_reach_the_engine_on_every_route():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
            for path, body in (("/generate", {"text": "x"}), ("/v1/completions", {"prompt": "x"}),
                               ("/v1/chat/completions", chat)):  # fmt: skip
                for more in ({}, {"cache_salt": "s"}, {"extra_key": "s"}, {"cache_salt": "s", "extra_key": "t"}):
                    assert (await served.post(path, **body, **more)).status_code == 200
            await served.post("/generate", text=["x", "y"], cache_salt=["s", "t"])
    salts = [salt for _, salt in engine.whose]
    assert salts[:4] == salts[4:8] == salts[8:12]
    assert salts[0] == ""
    assert len(set(salts[:4])) == 4
    assert salts[12:] == [salt_of("s", None), salt_of("t", None)]


async def test_no_two_pairs_make_the_same_salt():
    pairs = [("ab", None), (None, "ab"), ("a", "b"), ("1", "2"), ("12", None), ("1:2", None), ("1", ":2")]
    assert len({salt_of(*pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/generate", {"text": "x", "cache_salt": ""}, "cache_salt"),
        ("/generate", {"text": "x", "cache_salt": "s" * 257}, "cache_salt"),
        ("/generate", {"text": "x", "extra_key": "s" * 257}, "extra_key"),
        ("/generate", {"text": ["x", "y"], "cache_salt": ["s"]}, "cache_salt"),
        ("/generate", {"text": "x", "priority": 3}, "priority"),
        ("/v1/completions", {"prompt": "x", "cache_salt": ""}, "cache_salt"),
        ("/v1/completions", {"prompt": "x", "cache_salt": 5}, "cache_salt"),
        ("/v1/completions", {"prompt": "x", "priority": 3}, "priority"),
        ("/v1/chat/completions", {"messages": [], "priority": 3}, "priority"),
    ],
)
async def test_what_is_wrong_with_a_salt_is_told_by_name(path: str, body: dict[str, Any], field: str):
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            reply = await served.post(path, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert engine.started == 0


# --- one request, several generations ---------------------------------------------------------------------------------


async def test_the_generations_of_a_request_are_one_program_until_it_is_answered():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            await served.post("/generate", text="x")
            await served.post("/v1/completions", prompt="x", n=3)
            await served.post("/v1/completions", prompt="x", n=2, stream=True)
            await served.post("/generate", text=["x", "FAIL"])
    assert engine.programs[:6] == [0, 1, 1, 1, 2, 2]
    assert set(engine.programs[6:]) == {3}
    assert not engine.leases, "each was given back, the failed one too"


# --- over the engine --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), eos=True)


async def test_two_keys_have_two_caches_and_take_turns(folder: Path):
    with anyio.fail_after(90):
        async with Engine(
            folder, load_format="dummy", seed=1, max_rows=1, kv_slots=2048, threads=1, weights={"alice": 1, "bob": 1}
        ) as engine:
            async with serving(engine, api_keys=KEYS) as served:
                await _two_caches(served)
                await _turns(served, engine)


async def _two_caches(served: Served) -> None:
    body: dict[str, Any] = {"prompt": "A document that both ask about.", "max_tokens": 2, "ignore_eos": True}

    async def cached(key: str, **more: Any) -> int:
        usage = (await ask(served, key, "/v1/completions", **body, **more)).json()["usage"]
        hit = usage["prompt_tokens_details"]["cached_tokens"]
        assert hit in (0, usage["prompt_tokens"] - 1)
        return hit

    whose: list[tuple[str, dict[str, str]]] = [(A, {}), (B, {}), (A, {"cache_salt": "s"}), (B, {"cache_salt": "s"})]
    assert [await cached(key, **more) for key, more in whose] == [0] * 4
    assert min([await cached(key, **more) for key, more in whose]) > 0
    assert await cached(A, cache_salt="t") == 0
    assert await cached(A, extra_key="s") == 0


async def _turns(served: Served, engine: Engine) -> None:
    """With one row, bob's one request ends before most of what alice had asked for already."""
    ended: list[str] = []
    async with anyio.create_task_group() as group:

        async def one(key: str, number: int) -> None:
            params = {"max_new_tokens": 30, "ignore_eos": True}
            reply = await ask(served, key, text=f"{number} is the number", sampling_params=params)
            assert reply.status_code == 200
            ended.append(key)

        for number in range(8):
            group.start_soon(one, A, number)
        while (await engine.statistics())["requests"]["live"] < 8:
            await anyio.lowlevel.checkpoint()
        group.start_soon(one, B, 9)
    assert len(ended) == 9
    assert ended.index(B) <= 4, ended


# --- the file ---------------------------------------------------------------------------------------------------------


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


async def test_a_file_of_keys(tmp_path: Path):
    text = f"# who may ask\n\nalice {A} 2.5\n  bob\t{B}\nalice key-of-alice-new-one\n"
    read = read_api_keys(write(tmp_path / "keys", text))
    assert read.keys == (*KEYS, ApiKey("alice", "key-of-alice-new-one"))
    assert read.weights == {"alice": 2.5}
    assert A not in repr(read)
    GatewayOptions(api_keys=read.keys).verify()


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o606, 0o700 | 0o001])
async def test_a_file_that_others_may_touch_is_not_read(tmp_path: Path, mode: int):
    with pytest.raises(ValueError, match="chmod 600"):
        read_api_keys(write(tmp_path / "keys", f"alice {A}\n", mode))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no key"),
        ("alice\n", "line 1: 1 words"),
        (f"alice {A} 1 more\n", "line 1: 4 words"),
        (f"alice {A} heavy-{B}\n", "line 1: the third word is no number"),
        (f"alice {A} 2\nalice {B} 3\n", "line 2: 'alice' has another weight above"),
        (f"alice {A} -1\n", "weights: -1"),
        (f"alice {A} nan\n", "weights: nan"),
        (f"alice {A}\nbob {A}\n", "'alice' and 'bob' have the same key"),
        ("alice 2\n", "the key of 'alice' has 1 characters; 16 to 512 are needed"),
        (f"{'x' * 129} {A}\n", "129 characters given"),
        (f"alice {A}\x00\n", "printable"),
        (f"ålice {A}\n", "is not ASCII"),
        ("# " + "x" * (1 << 20), "larger than the 1048576 bytes"),
        ("".join(f"t{number} key-number-{number:08}\n" for number in range(1025)), "1025 given, at most 1024"),
    ],
)
async def test_what_is_wrong_with_a_file_is_told_without_a_key(tmp_path: Path, text: str, words: str):
    with pytest.raises(ValueError, match=words) as told:
        read_api_keys(write(tmp_path / "keys", text))
    assert A not in str(told.value)
    assert B not in str(told.value)


async def test_what_is_no_file_is_not_read(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, words in (("missing", "No such file"), (".", "directory|regular"), ("pipe", "no regular file")):
        with pytest.raises(ValueError, match=words):
            read_api_keys(tmp_path / path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_keys": KEYS, "api_key": A}, "api_key: it is a tenant's key too"),
        ({"api_keys": KEYS, "admin_api_key": B}, "admin_api_key: it is a tenant's key too"),
        ({"api_keys": (ApiKey("", A),)}, "'' is no name"),
        ({"api_keys": (ApiKey("two words", A),)}, "is no name"),
    ],
)
async def test_keys_that_cannot_be_told_apart_fail_the_start(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        GatewayOptions(**options).verify()
