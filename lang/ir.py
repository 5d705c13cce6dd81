"""The regular expressions of `gen(dtype=...)`, under SGLang's names and in its place (`sglang.lang.ir`).

Behind a number a model may write the space or the line break that it would write anyway; `dtype` cuts that off.
"""

__all__ = ["REGEX_BOOL", "REGEX_FLOAT", "REGEX_INT", "REGEX_STR"]

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""
