"""Turn gradients into their mean: each module has one strategy, a Replica."""
