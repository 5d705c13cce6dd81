"""Extraction: sentences in, objects of a class of yours out.

The schema binds every token, so the text always parses; what stands in it is the model's reading.
"""

import msgspec

import callboard as cb


class Worker(msgspec.Struct):
    """Somebody with a job."""

    name: str
    age: int
    city: str
    job: str


@cb.function
def extract(s, sentence):
    s += cb.user(f"Extract the name, age, city and job as JSON: {sentence}")
    s += cb.assistant(cb.gen("worker", max_tokens=64, temperature=0, json_schema=Worker))


def main() -> None:
    """Read three sentences at once, and sort the people by age."""
    sentences = (
        "Jonas, aged 44, works in Oslo as a teacher.",
        "Mira is a nurse from Lima and is 31 years old.",
        "27-year-old Tomas works as a baker in Prague.",
    )
    states = extract.run_batch([(sentence,) for sentence in sentences])
    workers: list[Worker] = [state.get_meta_info("worker")["parsed"] for state in states]
    for worker in sorted(workers, key=lambda worker: worker.age):
        print(worker)


if __name__ == "__main__":
    main()
