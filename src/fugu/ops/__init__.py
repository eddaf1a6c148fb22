"""What has a kernel: one file each, with its readable reference, its dispatch (torch, native CPU, CUDA) and the calls of each form."""
