"""An agent with tools: the model picks one and writes what to give it, Python runs it, and the model goes on.

The tools are plain async functions; while one waits, the other questions of the batch go on.
"""

import ast
import asyncio
import operator

import callboard as cb

PAGES = {
    "Mira": "Mira is a nurse. Mira lives in Lima. Every weekend Mira plays chess. Mira likes soup.",
    "Jonas": "Jonas is a teacher. Jonas lives in Oslo. At home Jonas has a cat.",
    "Petra": "Petra is a baker. Petra lives in Madrid. The favorite color of Petra is green.",
}
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(expression: str) -> str:
    """Compute sums, differences, products and quotients of numbers, and nothing else."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.BinOp(left, sign, right) if type(sign) in SIGNS:
                return SIGNS[type(sign)](value(left), value(right))
        raise ValueError(f"not arithmetic: {ast.unparse(node)}")

    return f"{value(ast.parse(expression.strip(), mode='eval').body):g}"


async def search(words: str) -> str:
    """Find the page whose title is among the key words; a real one would await an HTTP client here."""
    await asyncio.sleep(0)
    return next((page for title, page in PAGES.items() if title in words), "Nothing was found.")


@cb.function
async def agent(s, question):
    s += f"To answer this question: {question}. I need to use a "
    s += cb.select("tool", ["calculator", "search engine"])
    if await s.aget("tool") == "calculator":
        s += ". The math expression is" + cb.gen("input", max_tokens=24, stop="\n", temperature=0)
        s["answer"] = calculate(await s.aget("input"))
        return
    s += ". The key word to search is" + cb.gen("input", max_tokens=24, stop="\n", temperature=0)
    page = await search(await s.aget("input"))
    s += cb.user(f"Please summarize: {page}")
    s += cb.assistant(cb.gen("answer", max_tokens=48, temperature=0))


async def main() -> None:
    """Answer five questions side by side."""
    questions = [
        "What is 17 * 24?",
        "I have 12 apples and buy 30 more. How many do I have?",
        "Who is Mira?",
        "Where does Jonas live?",
        "What is 15% of 80?",
    ]
    for question, state in zip(questions, await agent.arun_batch([(question,) for question in questions]), strict=True):
        print(f"{question}\n  {state['tool']}:{state['input']}\n  {state['answer']}")


if __name__ == "__main__":
    asyncio.run(main())
