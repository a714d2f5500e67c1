"""Change a module of the product as a rank imports it.

A rank loads ``sitecustomize.py`` if its folder is on PYTHONPATH, and that loads the copy of this file beside
it. The product has no hooks for tests.
"""

import importlib.abc
import importlib.machinery
import sys


class _Changer(importlib.abc.MetaPathFinder):
    def __init__(self, name, change):
        self._name, self._change = name, change

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def then_change(module):
            execute(module)
            self._change(module)

        spec.loader.exec_module = then_change
        return spec


def change_when_imported(name, change):
    sys.meta_path.insert(0, _Changer(name, change))
