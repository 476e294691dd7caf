"""What a run leaves on the disk, and what of it training and sampling go on from.

directory    the run's directory: its files, its lock, and which requests fit it
checkpoint   saved training, verified
tensors      named tensors as bytes and back
log          metrics, samples and events
"""
