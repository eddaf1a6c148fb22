"""Parts shared by several algorithms. Nothing here is an algorithm, and nothing here knows one."""
