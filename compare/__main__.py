"""Start the command line: ``python -m compare``."""

from compare.cli.main import main

main()
