"""Measure, inside a rank, what synchronising costs a training script that runs unmodified."""

SETTINGS_VARIABLE = "RINGSIDE_METER"
"""The variable with the settings of the meter, in JSON; its presence switches the meter on."""
OUTPUT_VARIABLE = "RINGSIDE_METER_OUTPUT"
"""The variable with the folder of the record; without it, rank 0 makes a new folder in ``runs``."""
