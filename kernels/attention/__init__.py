"""Attention over the paged pool: the interface every kernel keeps, and the reference in torch."""
