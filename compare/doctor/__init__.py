"""Find out what is installed, whether it fits, and how to get it."""
