"""What a run leaves behind and shows while it goes on: metrics, timing, sinks, the dashboard, the runs/ folder."""
