"""Regexes compile off the loop, errors go to who asked, and the cache stays within its bounds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from callboard.actors.core import Supervisor
from callboard.actors.errors import InvalidRequest
from callboard.actors.grammar import Grammar, GrammarCache, GrammarLimits
from callboard.actors.messages import Compile
from callboard.actors.sampling import Constraint

IP_ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
END = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer with one ending, and the config of a model whose logits are wider."""
    return write(tmp_path_factory.mktemp("grammar"))


def write(folder: Path, **changes: Any) -> Path:
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 300,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "eos_token_id": END,
        **changes,
    }
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    return folder


def regex_of(text: str) -> Constraint:
    return Constraint("regex", text)


def accepts(cache: GrammarCache, folder: Path, regex: str, text: str) -> bool:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    matcher = cache.matcher(regex_of(regex))
    ids = tokenizer.encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("regex", "yes", "no"),
    [
        (IP_ADDRESS, ["8.8.8.8", "192.168.100.255", "1x2y3z4"], ["8.8.8", "256.1.1.1", "1\n2\n3\n4", " 8.8.8.8"]),
        (r"a.c", ["abc", "a c", "aéc"], ["ac", "a\nc", "abcd"]),
        (r"^ab$", ["ab"], ["abab", "ab\n"]),
        (r"[\w\d\s]{1,3}", ["a_1", " \n"], ["é", "", "abcd"]),
        (r"\d+", ["0123"], ["٣"]),
        (r"a/b\"", ['a/b"'], ["ab"]),
        (r"(?i)yes|NO", ["YES", "no"], ["maybe"]),
        (r"\p{L}+", ["é", "ab"], ["1"]),
        (r"()", [""], ["a"]),
    ],
)
def test_a_regex_is_matched_whole(folder: Path, regex: str, yes: list[str], no: list[str]) -> None:
    cache = GrammarCache(folder)
    assert [text for text in yes if not accepts(cache, folder, regex, text)] == []
    assert [text for text in no if accepts(cache, folder, regex, text)] == []


REFUSED = {
    "a(?=b)": "look-around, including look-ahead and look-behind, is not supported",
    "(?<!a)b": "look-around",
    r"(a)\1": "backreferences are not supported",
    r"\bword\b": "not supported",
    "(": "unclosed group",
    "[": "unclosed character class",
    "a{3,2}": "invalid repetition count range",
    "*a": "repetition operator missing expression",
    "a\\": "it ends in a lone backslash",
    r"[^\s\S]": "no text that the tokenizer can write matches",
    "(" * 5000 + ")" * 5000: "maximum number of nested parentheses",
}


@pytest.mark.parametrize("regex", REFUSED, ids=lambda regex: regex[:20])
def test_a_regex_that_cannot_run_is_refused_with_the_reason(folder: Path, regex: str) -> None:
    with pytest.raises(InvalidRequest, match="^regex: ") as caught:
        GrammarCache(folder).matcher(regex_of(regex))
    assert caught.value.field == "regex"
    assert REFUSED[regex] in str(caught.value)
    assert len(str(caught.value)) < 600


def test_copies_do_not_share_their_place(folder: Path) -> None:
    cache = GrammarCache(folder)
    first, second = cache.matcher(regex_of("ab")), cache.matcher(regex_of("ab"))
    assert first.consume_token(64)
    assert not first.is_accepting()
    assert second.compute_bitmask() == cache.matcher(regex_of("ab")).compute_bitmask() != first.compute_bitmask()


def test_a_mask_covers_the_models_logits(folder: Path) -> None:
    cache = GrammarCache(folder)
    assert cache.mask_words == 10  # 300 logits
    allowed = cache.matcher(regex_of("[^a]+")).compute_bitmask()
    assert not [token for token in range(END, 320) if allowed[token // 8] >> (token % 8) & 1]


def test_the_cache_keeps_the_latest_used_within_its_bounds(folder: Path) -> None:
    cache = GrammarCache(folder, GrammarLimits(entries=3, source_bytes=10))
    for regex in ("aa", "bb", "cc"):
        cache.matcher(regex_of(regex))
    cache.matcher(regex_of("aa"))
    cache.matcher(regex_of("dd"))
    assert [regex_of(regex) in cache for regex in ("aa", "bb", "cc", "dd")] == [True, False, True, True]
    cache.matcher(regex_of("eeeeeeee"))  # 8 of the 10 bytes
    assert [regex_of(regex) in cache for regex in ("cc", "dd", "eeeeeeee")] == [False, True, True]
    assert len(cache) == 2
    cache.matcher(regex_of("f" * 11))  # more than all: used, not kept
    assert len(cache) == 0


def test_a_regex_beyond_its_fuel_is_refused_or_breaks_its_matcher_alone(folder: Path) -> None:
    limits = GrammarLimits(compile_fuel=200, step_fuel=200)
    with pytest.raises(InvalidRequest, match="cannot be compiled"):
        GrammarCache(folder, limits).matcher(regex_of(r"(\p{L}{1,50}-[a-z]{30}|\p{N}{7}x){40}"))


def test_a_model_without_an_ending_takes_no_regex(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no end-of-sequence token"):
        GrammarCache(write(tmp_path, eos_token_id=None)).matcher(regex_of("a"))


def test_a_tokenizer_wider_than_the_logits_still_binds(tmp_path: Path) -> None:
    cache = GrammarCache(write(tmp_path, vocab_size=200, eos_token_id=100))
    assert cache.mask_words == 9  # the tokenizer's 257


def test_threads_may_share_it(folder: Path) -> None:
    cache = GrammarCache(folder, GrammarLimits(entries=2))
    failures: list[BaseException] = []

    def use(number: int) -> None:
        try:
            for index in range(20):
                matcher = cache.matcher(regex_of(f"[a-{chr(99 + (index + number) % 5)}]+"))
                assert matcher.consume_token(64)
                matcher.compute_bitmask()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(cache) == 2


@pytest.mark.anyio
async def test_the_actor_answers_each_asker(folder: Path) -> None:
    cache = GrammarCache(folder)
    errors: list[InvalidRequest] = []
    with anyio.fail_after(20):
        async with Supervisor("test", restarts=0) as supervisor:
            actor = await supervisor.spawn(lambda: Grammar(cache), name="grammar")

            async def ask(regex: str) -> None:
                try:
                    assert await actor.ask(Compile(regex_of(regex))) is None
                except InvalidRequest as error:
                    errors.append(error)

            async with anyio.create_task_group() as group:
                for regex in ("a+", "(", IP_ADDRESS, "a+", r"(a)\1"):
                    group.start_soon(ask, regex)
            assert len(errors) == 2  # and the actor, allowed no restart, lives on
            await ask("a+")
    assert regex_of("a+") in cache
    assert regex_of(IP_ADDRESS) in cache


@pytest.mark.anyio
async def test_a_slow_regex_holds_up_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = GrammarCache(folder)
    gate = threading.Event()
    compile_one = cache.matcher

    def slow(constraint: Constraint, grammar: str | None = None) -> Any:
        if "slow" in constraint.source:
            gate.wait(20)
        return compile_one(constraint, grammar)

    monkeypatch.setattr(cache, "matcher", slow)
    answered: list[str] = []
    with anyio.fail_after(20):
        async with Supervisor("test") as supervisor:
            actor = await supervisor.spawn(lambda: Grammar(cache), name="grammar")

            async def ask(regex: str) -> None:
                await actor.ask(Compile(regex_of(regex)))
                answered.append(regex)

            async with anyio.create_task_group() as group:
                group.start_soon(ask, "slow")
                await ask("quick")
                gate.set()
    assert answered == ["quick", "slow"]
