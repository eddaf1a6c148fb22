"""What several algorithms are made of. Nothing here is an algorithm, and nothing here knows one."""
