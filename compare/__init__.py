"""Ringside: compare ways of synchronising gradients, on your machines, and say what each costs."""

__version__ = "0.1.0"
