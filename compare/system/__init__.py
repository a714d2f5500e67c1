"""Ask this machine: its clock, its limits, its files. Every room may."""
