"""Start a script under the meter: ``torchrun -m ringside.meter train.py``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The working folder comes first under -m, and may have a module of the user's with the name of a package
    # of ours. The process becomes the script's, so nothing needs to be put back.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

    from compare.meter.command import main

    main()
