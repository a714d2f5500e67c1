"""``python -m compare``."""

from compare.cli.main import main

main()
