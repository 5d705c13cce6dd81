"""The requests of one engine that somebody records, and the steps they are in."""

from __future__ import annotations

from typing import Any

from .messages import Finish, Step
from .recorder import Recorder, Track, current_track

__all__ = ["Recorded"]


class Recorded:
    """Tell tracks what becomes of requests: `tracks`, by the requests' numbers, is empty nearly always.

    The engine, which knows who asks, fills it; a scheduler, which knows what runs, looks into it.  It looks before
    it tells anything, so that nothing is called while nobody records.  Each scheduler has one of its own, for the
    steps it sends, over the engine's `tracks`; replica: which of them it is.
    """

    __slots__ = ("_replica", "_seen", "sent", "tracks")

    def __init__(self, tracks: dict[int, Track] | None = None, replica: int = 0) -> None:
        self.tracks: dict[int, Track] = {} if tracks is None else tracks
        self._replica = replica
        self.sent: dict[int, tuple[int, set[Recorder], str, dict[str, Any]]] = {}  # steps in flight, by their numbers
        self._seen = 0  # when the last step was done

    # --- told by the engine ----------------------------------------------------------------------------------------

    def asked(self, request: int) -> bool:
        """Note that a request is asked for here and now, if that is recorded, and tell whether it is."""
        track = current_track()
        if track is not None and track is track.recorder.outside:
            track = track.recorder.open(f"request {request}", track)
            if track is not None:
                track.begin()
        if track is None:
            return False
        self.tracks[request] = track
        track.request(request, "queued")
        return True

    def answered(self, request: int, finish: Finish | None) -> None:
        """Note that its answer is whole, or that nobody waits for it any more."""
        track = self.tracks.pop(request)
        told: dict[str, Any] = {}
        if finish is not None:
            told = {
                "prompt_tokens": finish.prompt_tokens, "cached_tokens": finish.cached_tokens,
                "completion_tokens": finish.completion_tokens, "finish_reason": finish.reason,
            }  # fmt: skip
        track.request_over(request, told)
        if track.root is track.recorder.outside:
            track.end()

    # --- told by the scheduler -------------------------------------------------------------------------------------

    def phase(self, request: int, phase: str) -> None:
        """Note what becomes of a request, if it is recorded."""
        if (track := self.tracks.get(request)) is not None:
            track.request(request, phase)

    def step(self, step: Step) -> None:
        """Note that a step is sent."""
        recorders = {track.recorder for track in self.tracks.values()}
        rows = len(step.decode_rows) // 4
        prompts = sum(len(extend.tokens) // 4 for extend in step.extends)
        name = "both" if rows and prompts else "decode" if rows else "prefill"
        told: dict[str, Any] = {"step": step.number, "rows": rows + len(step.extends), "tokens": rows + prompts}
        self.sent[step.number] = (next(iter(recorders)).clock(), recorders, name, told)

    def step_done(self, number: int, device_s: float) -> None:
        """Note that a step is done: steps run one behind the other, though the next is sent before.

        device_s: what it took on the device, for word of it may come late; 0 if that is not known.
        """
        if (sent := self.sent.pop(number, None)) is None:
            return
        begun, recorders, name, told = sent
        end = begun
        for recorder in recorders:
            begun, end = max(begun, self._seen), recorder.clock()
            if device_s:
                end = min(end, begun + round(1e9 * device_s))
            recorder.keep(recorder.steps_of(self._replica), name, begun, end, told)
        self._seen = end

    def forget_steps(self) -> None:
        """Begin anew: a worker that is told to forget its rows finishes nothing more."""
        self.sent.clear()
