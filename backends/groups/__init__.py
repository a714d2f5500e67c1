"""Join ranks and move bytes: each module has one library's Group."""
