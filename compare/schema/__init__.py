"""Define what travels between processes and what is saved."""
