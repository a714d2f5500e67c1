"""Turn gradients into their mean: every strategy is a subclass of ``Replica``."""
