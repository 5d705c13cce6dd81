"""One generation, from its parameters to its variables: one text or several, reasoning told apart."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..actors.backend import Prompt
from ..actors.errors import Aborted, GenerationFailed
from ..actors.messages import Delta, Finish
from ..actors.reasoning import Markers, ReasoningParser
from ..actors.sampling import SamplingParams
from ..actors.together import together
from .script import Generate
from .speculating import speculate, speculates
from .stream_state import StreamState
from .variable import Generation, Variable

if TYPE_CHECKING:
    from .stream import Stream

__all__ = ["generate"]


class _Voice(msgspec.Struct, eq=False, gc=False):
    """One text of a generation, as it comes; the first of several is what the program goes on with.

    thought, parser: where its reasoning goes, if that is told apart; the answer is then parsed at the end.
    """

    answer: Variable
    generation: Generation
    first: bool = True
    thought: Variable | None = None
    parser: ReasoningParser | None = None
    parse: Callable[[str], Any] | None = None

    async def listen(self, stream: StreamState, deltas: AsyncGenerator[Delta, None]) -> None:
        """Hear a generation to its end; raises what it fails with."""
        generation = self.generation
        try:
            async for delta in deltas:
                generation.add(delta)
                if delta.text:
                    self.hear(stream, delta.text)
        except BaseException:
            await deltas.aclose()
            raise
        _expect_whole(generation.finish)
        if self.parser is not None:
            self._tell(stream, *self.parser.finish(), last=True)
            generation.parse, generation.text = self.parse, self.answer.heard or ""

    def hear(self, stream: StreamState, text: str) -> None:
        if self.first:
            stream.transcript.hear(text)
        if self.parser is not None:
            thought, answer = self.parser.feed(text)
            self._tell(stream, thought, answer, last=self.parser.answering)
        elif self.answer.heard is not None:
            self.answer.heard += text
        stream.ring_text()

    def _tell(self, stream: StreamState, thought: str, answer: str, *, last: bool) -> None:
        """Add to both parts; `last`: the reasoning is complete."""
        assert self.answer.heard is not None
        self.answer.heard += answer
        variable = self.thought
        if variable is not None and not variable.ready:
            variable.heard = (variable.heard or "") + thought
            if last:
                variable.set(variable.heard)
                stream.ring()


async def generate(stream: Stream, step: Generate) -> None:
    """Generate into a step's variables; what was said before is tokenized first, if the backend has a tokenizer.

    Several texts are generated side by side from the prompt, which is computed once; the transcript goes on with the
    first.  The first error ends all of them.
    """
    transcript, backend, variable = stream.transcript, stream.backend, step.variable
    if transcript.tail:
        await stream.settle_tail()
    if transcript.joins:
        transcript.close_join()
    tokenized, start, prompt = not transcript.tail, transcript.length, stream.leased_prompt()
    voices = _voices(stream, step)
    voice = voices[0]
    variable.start = start
    stream.ring()
    sampling = step.sampling if step.markers is None else _behind_reasoning(stream, step, step.markers)
    if len(voices) == 1:
        ahead = stream.defaults.overrun_tokens is not None and speculates(stream, step)
        told = speculate(stream, step, prompt) if ahead else backend.generate(prompt, sampling)
        await voice.listen(stream, told)
    else:
        if transcript.length:
            await backend.prefill(prompt)
        await _listen_to_all(voices, stream, prompt, sampling)
    if step.texts:
        await _learn_texts(voices, stream)
    text, generation = transcript.text[start:], voice.generation
    finish = generation.finish
    assert finish is not None, "whoever has listened to the end knows it"
    if generation.tokens is not None and tokenized:
        taken = 0 if finish.healed is None else finish.healed.taken
        transcript.settle_output(generation.tokens, finish.kept_tokens, finish.tail, taken)
    else:  # nothing came, or the backend has no tokenizer and the text is all there is
        transcript.tail += text
    for one in voices:
        one.answer.set(text if one.answer.heard is None else one.answer.heard)
    if variable.parts:
        variable.set([part.value for part in variable.parts])
        if step.thought is not None:
            step.thought.set([part.value for part in step.thought.parts])
    stream.ring()


def _behind_reasoning(stream: StreamState, step: Generate, markers: Markers) -> SamplingParams:
    """Let a constraint bind only the answer, where reasoning is told apart from it and the backend can."""
    if step.sampling.constraint is None or not stream.backend.binds_answers:
        return step.sampling
    opened = markers.opened or stream.transcript.text.rstrip().endswith(markers.begin)
    return msgspec.structs.replace(step.sampling, reasoning=msgspec.structs.replace(markers, opened=opened))


def _voices(stream: StreamState, step: Generate) -> tuple[_Voice, ...]:
    """Give the texts of a generation; the variables they go to know where they come from."""
    variable, markers = step.variable, step.markers
    if markers is None and not variable.parts:  # most are one text
        variable.origin = generation = Generation(step.parse)
        return (_Voice(variable, generation),)
    answers = variable.parts or (variable,)
    thoughts = (None,) * len(answers) if step.thought is None else step.thought.parts or (step.thought,)
    opened = markers is not None and stream.transcript.text.rstrip().endswith(markers.begin)
    voices: list[_Voice] = []
    for answer, thought in zip(answers, thoughts, strict=True):
        parser = None if markers is None else ReasoningParser(markers, opened=opened)
        answer.origin = generation = Generation(step.parse if parser is None else None)
        answer.heard = ""  # it is not simply a part of the transcript
        if thought is not None:
            thought.heard = ""
        voices.append(_Voice(answer, generation, not voices, thought, parser, step.parse))
    if variable.parts:
        variable.origin = [voice.generation for voice in voices]
    return tuple(voices)


async def _listen_to_all(
    voices: tuple[_Voice, ...], stream: StreamState, prompt: Prompt, sampling: SamplingParams
) -> None:
    several = zip(voices, sampling.spread(len(voices)), strict=True)
    await together([partial(voice.listen, stream, stream.backend.generate(prompt, one)) for voice, one in several])
    for voice in voices:  # one that was cancelled, and not by us, has not listened to the end
        _expect_whole(voice.generation.finish)


async def _learn_texts(voices: tuple[_Voice, ...], stream: StreamState) -> None:
    """Ask for the text of every token that log-probabilities tell of."""
    ids = {token for voice in voices for token in voice.generation.scored_tokens()}
    texts = await stream.backend.token_texts(sorted(ids))
    known = dict(zip(sorted(ids), texts, strict=True))
    for voice in voices:
        voice.generation.texts = known


def _expect_whole(finish: Finish | None) -> None:
    if finish is None:
        raise GenerationFailed("the backend's stream was cut: it ended without saying how")
    if finish.reason == "abort":
        raise Aborted(finish.message or "the generation was aborted")
    if finish.reason == "error":
        raise GenerationFailed(finish.message or "the generation failed")
