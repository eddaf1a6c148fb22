"""Sources of batches: a source fills ``[segments, horizon]`` columns by asking a policy to act."""
