"""Join ranks into groups that move bytes; each module has the subclass of ``Group`` for one library."""
