"""Write jobs that run a command of Ringside later: they reach no host themselves."""
