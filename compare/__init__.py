"""Ringside: compare ways of synchronising gradients, on your machines, and say what each costs."""
