"""Sequential Monte Carlo over next-token log-probabilities: how a sentence goes on without the letter "e".

Each particle is a sequence that grows a token at a time. Tokens with an "e" are masked out; a particle's weight is
multiplied by the mass that the mask leaves, so that the weighted particles follow the model's own distribution, given
that there is no "e" (Lew et al. 2023). Particles that the mask drives into corners lose weight, and are resampled away.

The code of one particle knows nothing of the others: whatever waits for log-probabilities is one batch.
"""

import asyncio
import math

import torch

import callboard as cb

PROMPT = "The"
PARTICLES, TOKENS = 32, 24


class Particle:
    """One sequence in the making; `weight` is a natural logarithm."""

    def __init__(self, ids: list[int], weight: float = 0.0, over: bool = False) -> None:
        self.ids = ids
        self.weight = weight
        self.over = over

    async def grow(self, lm: cb.AsyncLM, allowed: torch.Tensor, ends: set[int], draw: torch.Generator) -> None:
        """Draw one allowed token, and weigh what the mask has cut off."""
        if self.over:
            return
        logprobs = (await lm.next_token_logprobs(self.ids)).masked_fill(~allowed, -math.inf)
        self.weight += float(logprobs.logsumexp(-1))
        token = int(torch.multinomial(logprobs.softmax(-1), 1, generator=draw))
        self.over = token in ends
        if not self.over:
            self.ids = [*self.ids, token]


def resample(particles: list[Particle], draw: torch.Generator) -> list[Particle]:
    """Draw as many particles by their weights once those of half have gone; all weigh the same afterwards."""
    weights = torch.tensor([particle.weight for particle in particles])
    shares = weights.softmax(-1)
    if 1 / float(shares.square().sum()) > len(particles) / 2:
        return particles
    mean = float(weights.logsumexp(-1)) - math.log(len(particles))
    chosen = torch.multinomial(shares, len(particles), replacement=True, generator=draw).tolist()
    return [Particle(particles[index].ids, mean, particles[index].over) for index in chosen]


async def main() -> None:
    """Grow all particles side by side, and print those that weigh most."""
    async with cb.AsyncLM.from_name("embedded", seed=0) as lm:
        draw = torch.Generator().manual_seed(0)
        prompt, ends = lm.encode(PROMPT), {*lm.encode("<|im_end|>"), *lm.encode("<|endoftext|>")}
        allowed = torch.tensor(["e" not in text.lower() or token in ends for token, text in enumerate(lm.str_vocab)])
        particles = [Particle(prompt) for _ in range(PARTICLES)]
        for _ in range(TOKENS):
            async with asyncio.TaskGroup() as group:
                for particle in particles:
                    group.create_task(particle.grow(lm, allowed, ends, draw))
            particles = resample(particles, draw)
        weights = torch.tensor([particle.weight for particle in particles])
        shares: dict[str, float] = {}
        for particle, share in zip(particles, weights.softmax(-1).tolist(), strict=True):
            text = lm.decode(particle.ids[len(prompt) :])
            shares[text] = shares.get(text, 0.0) + share
        for text, share in sorted(shares.items(), key=lambda item: -item[1])[:5]:
            print(f"{share:6.1%}  {PROMPT}{text}")
        mass = float(weights.logsumexp(-1)) - math.log(PARTICLES)
        print(f"The model gives text without an e a chance of about {math.exp(mass):.2g}.")


if __name__ == "__main__":
    asyncio.run(main())
