"""Join ranks and move bytes: each module has the subclass of ``Group`` for one library."""
