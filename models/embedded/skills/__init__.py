"""What the embedded model is taught: one skill a file, each a function of (rng, held).

`held` asks for the phrasings, number pairs, names and questions that are kept out of the training corpus.
"""

__all__: list[str] = []
