"""Do the work of one rank, in a process of its own; no other package imports this one."""
