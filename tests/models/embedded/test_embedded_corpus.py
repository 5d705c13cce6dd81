"""The corpus is the same for the same seed, and what is held out of it stays out."""

import re
from random import Random

from callboard.models.embedded.corpus import SINGLES, documents
from callboard.models.embedded.documents import Piece, Turn, chat, raw
from callboard.models.embedded.facts.countries import COUNTRIES
from callboard.models.embedded.facts.outside import HELD_OUTSIDE
from callboard.models.embedded.facts.tips import TIPS
from callboard.models.embedded.facts.words import HELD_NAMES
from callboard.models.embedded.skills import arithmetic, capitals, characters, conversation, recall
from callboard.models.embedded.suites import questions, right

DOCUMENTS = [list(document) for document in documents("tests", 4000)]
TEXT = "\n".join("".join(piece.text for piece in document) for document in DOCUMENTS)


def test_the_same_seed_writes_the_same_documents():
    assert [list(document) for document in documents("tests", 200)] == DOCUMENTS[:200]
    assert [list(document) for document in documents("other", 200)] != DOCUMENTS[:200]


def test_every_document_begins_with_given_text_and_ends_with_an_end_the_model_says():
    for document in DOCUMENTS:
        assert not document[0].said
        assert document[-1] in (Piece("<|im_end|>", said=True), Piece("<|endoftext|>", said=True))


def test_no_held_out_sum_is_worked_out_in_training():
    sums = re.findall(r"(?<![\d.] )(?<![\d-])(\d+) ([+-]) (\d+) = -?\d", TEXT)
    assert len(sums) > 1000
    assert not [pair for pair in sums if arithmetic.is_held(int(pair[0]), pair[1], int(pair[2]))]


def test_about_a_tenth_of_the_sums_is_held_out_whichever_way_they_are_written():
    held = [(a, b) for a in range(100) for b in range(100) if arithmetic.is_held(a, "+", b)]
    assert 0.07 < len(held) / 10_000 < 0.13
    assert all(arithmetic.is_held(b, "+", a) for a, b in held)
    assert {a % 10 for a, _ in held} == set(range(10))  # no last digit is spared, none is missing


def test_held_out_phrasings_names_and_questions_are_not_in_the_corpus():
    held = [
        *capitals.CAPITAL_HELD, *capitals.REVERSE_HELD, *capitals.CONTINENT_HELD, *capitals.LIST_HELD,
        *arithmetic.FORMS_HELD, *characters.ASKS_HELD, *conversation.ABOUT_HELD, *conversation.SIGHTS_HELD,
        *recall.FIRST_HELD, *recall.LAST_HELD,
    ]  # fmt: skip
    lowered = TEXT.lower()
    for template in held:
        pattern = ".{1,40}".join(re.escape(part) for part in re.split(r"\{\w+\}", template.lower().rstrip("?.")))
        assert not re.search(rf"(?:^|: |\n){pattern}[?.\n]", lowered), template
    for question in HELD_OUTSIDE:
        assert question not in TEXT
    for name in HELD_NAMES:
        assert not re.search(rf"\b{name}\b", TEXT), name


def test_every_held_out_question_is_right_when_answered_as_written():
    for question in questions(share=0.2):
        assert right(question, question.answer), question


def test_a_wrong_capital_or_a_repeated_country_is_not_right():
    question = next(question for question in questions(share=0.2) if question.check == "countries")
    assert not right(question, question.answer.replace(" - ", " - New ", 1))
    assert not right(question, question.answer + "\n" + question.answer)


def test_a_turn_is_laid_out_as_chat_and_as_text():
    turn = Turn("What is the capital of France?", "The capital of France is Paris.", "Paris")
    layouts = {"".join(piece.text for piece in chat(Random(i), [turn])) for i in range(60)}
    opening = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert f"{opening}The capital of France is Paris.<|im_end|>" in layouts
    assert f"{opening}Answer: Paris<|im_end|>" in layouts
    texts = {"".join(piece.text for piece in raw(Random(i), [turn])) for i in range(60)}
    assert "Q: What is the capital of France?\nA: Paris<|endoftext|>" in texts


def test_the_facts_are_whole():
    assert len(COUNTRIES) == len({country.name for country in COUNTRIES}) == 197
    assert all(tip.clause.endswith(tuple("abcdefghijklmnopqrstuvwxyz")) for tip in TIPS)
    assert all(tip.paragraph.endswith(".") for tip in TIPS)
    assert all(weight > 0 for _, weight in SINGLES.values())


def test_character_sheets_fit_the_founding_examples_expressions():
    for indent in (" ", "    "):
        inner = " " if indent == " " else "        "
        word = r"[\w\d\s]{1,16}"
        expression = (
            rf'\{{\n{indent}"name": "{word}",\n{indent}"house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
            rf'{indent}"blood status": "(Pure-blood|Half-blood|Muggle-born)",\n{indent}"occupation": "(student|teacher|'
            rf'auror|ministry of magic|death eater|order of the phoenix)",\n{indent}"wand": \{{\n{inner}"wood": '
            rf'"{word}",\n{inner}"core": "{word}",\n{inner}"length": [0-9]{{1,2}}\.[0-9]{{0,2}}\n{indent}\}},\n'
            rf'{indent}"alive": "(Alive|Deceased)",\n{indent}"patronus": "{word}",\n{indent}"bogart": "{word}"\n\}}'
        )
        for character in characters.CHARACTERS:
            assert re.fullmatch(expression, characters.sheet(character, indent)), character.name
