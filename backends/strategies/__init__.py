"""Turn gradients into their mean; each module has the subclass of ``Replica`` for one strategy."""
