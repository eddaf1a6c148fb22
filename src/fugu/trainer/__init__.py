"""The training loop and what it needs: minibatches, optimizers, checkpoints. Importing this package loads nothing heavy."""
