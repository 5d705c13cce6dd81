"""Facts the embedded model is taught, one table a file, all written by hand."""

__all__: list[str] = []
