"""Switch the meter on in a Python process, before its script starts; Python imports this file by its name.

Another ``sitecustomize`` that this one hides is imported too, as it would have been without the meter.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = str(HERE.parents[2])

# The script must not find our packages by chance, and must find what it would find without the meter.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
sys.path.insert(0, PACKAGES)
try:
    importlib.import_module("compare.meter.start").start()
finally:
    sys.path.remove(PACKAGES)
hidden = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
finally:
    sys.modules.setdefault(__name__, hidden)
