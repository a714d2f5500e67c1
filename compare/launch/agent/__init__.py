"""Connect the parent to an agent on each host, which carries out launches there."""
