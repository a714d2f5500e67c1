"""How gradients become the mean: one module per strategy, each a Replica."""
