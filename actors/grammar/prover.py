"""The parent's side of a process that proves constraints."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from signal import SIGXCPU

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from ..errors import GenerationFailed, InvalidRequest
from ..sampling import Constraint
from .limits import GrammarLimits, ProofLimits
from .matcher import TokenizerFile
from .protocol import HEADER_BYTES, Proof, Prove, Ready, Refusal, Setup, ToChild, ToParent, frame, frame_size

__all__ = ["Prover"]

_GONE = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError)


class Prover:
    """One process, started when it is needed and again after it died or was killed; one proof at a time."""

    def __init__(self, tokenizer: TokenizerFile, limits: GrammarLimits, proof: ProofLimits) -> None:
        self._setup = Setup(tokenizer, limits, proof.memory_bytes)
        self._proof = proof
        self._decoder = msgspec.msgpack.Decoder(ToParent)
        self._process: Process | None = None
        self._replies: BufferedByteReceiveStream | None = None

    async def prove(self, constraint: Constraint) -> str:
        """Give llguidance's grammar for a constraint that compiles within the limits; else raise InvalidRequest.

        Raises GenerationFailed if no process can be had.
        """
        used = self._process is not None
        while True:
            if self._process is None:
                await self._start(constraint)
            try:
                with anyio.fail_after(self._proof.compile_s):
                    answer = await self._ask(Prove(constraint, 2 * self._proof.compile_s + 1))
            except TimeoutError:
                await self.close()
                limit = f"{self._proof.compile_s:g} s"
                raise InvalidRequest(constraint.kind, f"compiling it takes longer than {limit}") from None
            except _GONE:
                status = await self.close()
                if used:  # it may have died before, of something else: a fresh one tells
                    used = False
                    continue
                raise InvalidRequest(constraint.kind, self._cause(status)) from None
            except BaseException:
                await self.close()
                raise
            if isinstance(answer, Refusal):
                raise InvalidRequest(constraint.kind, answer.message)
            assert isinstance(answer, Proof), answer
            return answer.grammar

    async def close(self) -> int | None:
        """Kill the process, if there is one, and wait until it is gone; its exit status."""
        process, self._process, self._replies = self._process, None, None
        if process is None:
            return None
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                process.kill()
            await process.aclose()
        return process.returncode

    async def _start(self, constraint: Constraint) -> None:
        command = [sys.executable, "-P", "-m", f"{__package__}.child"]
        try:
            with anyio.fail_after(self._proof.start_s):
                # a session of its own: a terminal's interrupt is for the parent
                self._process = await anyio.open_process(command, stderr=subprocess.DEVNULL, start_new_session=True)
                assert self._process.stdout is not None
                self._replies = BufferedByteReceiveStream(self._process.stdout)
                answer = await self._ask(self._setup)
        except (OSError, TimeoutError, *_GONE) as error:
            status = await self.close()
            raise GenerationFailed(
                f"the process that compiles grammars did not start (exit status {status}): {error!r:.200}"
            ) from error
        except BaseException:
            await self.close()
            raise
        if isinstance(answer, Refusal):
            await self.close()
            raise InvalidRequest(constraint.kind, answer.message)
        assert isinstance(answer, Ready), answer

    async def _ask(self, message: ToChild) -> ToParent:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._replies is not None
        await self._process.stdin.send(frame(message))
        size = frame_size(await self._replies.receive_exactly(HEADER_BYTES))
        return self._decoder.decode(await self._replies.receive_exactly(size))

    def _cause(self, status: int | None) -> str:
        if status == -SIGXCPU:
            return f"compiling it takes longer than {self._proof.compile_s:g} s"
        limit = self._proof.memory_bytes >> 20
        if status is not None and status > 0:
            return f"compiling it fails, or takes more than the {limit} MiB of memory that are allowed"
        return f"compiling it takes more than the {limit} MiB of memory, or the stack, that are allowed"
