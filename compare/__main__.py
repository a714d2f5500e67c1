"""Start the command line: ``python -m compare``."""

import sys

from compare.errors import UnavailableError

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; on a system other than Linux, print an error and exit."""
    # ``compare.cli.main`` imports modules that only Linux has, so this check comes first.
    if sys.platform != "linux":
        error = UnavailableError(
            "Ringside runs on Linux only.",
            found=f"This system is {sys.platform}.",
            remedy="Use a machine with Linux, a container, or WSL 2 on Windows.",
        )
        sys.stderr.write(f"error: {error.what}\n  {error.found}\n  {error.remedy}\n")
        sys.exit(error.exit_code)
    try:
        from compare.cli.main import main as run
    except KeyboardInterrupt:  # no traceback while modules are loaded
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
