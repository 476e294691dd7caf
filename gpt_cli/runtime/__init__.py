"""The machine: device, precision, threads, signals, out-of-memory, the watchdog, CUDA graphs.

Read first: `device.py`.
Never: knows a model or a run.
"""
