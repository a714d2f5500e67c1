"""Turn raw samples into figures and judgements. Everything here is pure."""
