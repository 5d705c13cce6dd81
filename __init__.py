"""A language for programs that call language models, and the actor runtime that serves them."""
