"""Build Horovod from its source for the installed torch."""
