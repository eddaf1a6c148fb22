"""The training loop and its parts: minibatches, optimizers, checkpoints. Importing this package loads nothing heavy."""
