"""The records and displays of a run: metrics, timing, sinks, the dashboard, the runs/ folder."""
