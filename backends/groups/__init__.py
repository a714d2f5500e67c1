"""Who is here and how bytes move: one module per library, each a Group."""
