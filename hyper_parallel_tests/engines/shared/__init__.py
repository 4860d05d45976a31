"""What engines on top of torch.distributed have in common; no engine itself."""
