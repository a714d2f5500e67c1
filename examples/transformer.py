"""A language model: tied embeddings, dropout, batches that are dictionaries.

``ringside run --workload examples/transformer.py:make`` trains it through every backend.
"""

import torch
from torch import nn

from compare.workload import Workload

TOKENS, LENGTH, WIDTH = 64, 16, 32


class Transformer(nn.Module):
    """Predict the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens, shape (batch, length), to logits, shape (batch, length, tokens)."""
        return self.head(self.layers(self.embedding(tokens) + self.places, mask=self.mask))


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross entropy of the next tokens."""
    logits = model(batch["tokens"])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())


def make() -> Workload:
    """Return the workload: sequences that count in steps of their own."""
    starts, steps = torch.arange(TOKENS).repeat_interleave(8), torch.arange(1, 9).repeat(TOKENS)
    sequences = (starts[:, None] + steps[:, None] * torch.arange(LENGTH + 1)) % TOKENS
    data = [{"tokens": sequence[:-1], "next": sequence[1:]} for sequence in sequences]
    return Workload(
        model=Transformer(),
        data=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        before_step=lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
        schedule=lambda step: min(1.0, (step + 1) / 20),
    )
