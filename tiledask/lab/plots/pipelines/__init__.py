"""Figures of pipelines: who does what when, idle time, memory over time, schedules compared."""
