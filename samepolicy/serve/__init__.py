"""The live page over a run folder: metrics of every step as they come, alarms, and the report of any step."""
