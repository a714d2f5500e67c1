"""``python -m compare``."""

from compare.cli import main

main()
