"""The commands: each reads flags, calls one function and prints its result."""
