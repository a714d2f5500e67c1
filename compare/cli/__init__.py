"""Read flags, call one function, print its result."""
