"""The tokenizer: byte-level BPE trained on the corpus, with the ChatML tokens.

python -m callboard.models.embedded.tokenizer --output FOLDER
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from . import path
from .corpus import documents
from .documents import END_OF_TEXT, TURN_END, TURN_START

__all__ = ["CHAT_TEMPLATE", "PATTERN", "VOCABULARY", "build", "save"]

VOCABULARY = 4096

# Words take the space before them; every digit stands alone, so that numbers are seen place by place; a mark and a
# newline never share a token, so that text cut at a newline is tokenized as the whole text is.
PATTERN = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _texts(count: int) -> Iterator[str]:
    """Yield the pieces of `count` documents, without the tokens that are added anyway."""
    for document in documents("tokenizer", count):
        for piece in document:
            for part in piece.text.replace(TURN_START, TURN_END).replace(END_OF_TEXT, TURN_END).split(TURN_END):
                if part:
                    yield part


def build(documents_read: int = 60_000, vocabulary: int = VOCABULARY) -> Tokenizer:
    """Train the tokenizer on the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, special=True) for token in (END_OF_TEXT, TURN_START, TURN_END)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=3,
    )
    tokenizer.train_from_iterator(_texts(documents_read), trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def main() -> None:
    """Train the tokenizer and write its files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=path())
    arguments = parser.parse_args()
    tokenizer = build()
    save(tokenizer, arguments.output)
    print(f"{tokenizer.get_vocab_size()} tokens in {arguments.output}")


if __name__ == "__main__":
    main()
