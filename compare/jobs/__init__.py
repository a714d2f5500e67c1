"""Write jobs for schedulers that run a command of Ringside later; this package reaches no host."""
