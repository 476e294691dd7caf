"""Muon's update by compiled code."""

import ctypes
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from gpt_cli.cpu.train.train_bindings import NativeLibrary


class _MuonJob(ctypes.Structure):
    """`MuonJob` of muon.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parameter", "gradient", "momentum")),
        *((name, ctypes.c_int) for name in ("rows", "columns", "tall")),
        ("scale", ctypes.c_float),
    )


class NativeMuon:
    """Compiled code for `gpt_cli.training.muon`, each matrix by one thread."""

    def __init__(self, library: NativeLibrary, threads: int, polynomials: Sequence[Sequence[float]]) -> None:
        """`polynomials`: the three coefficients of each iteration."""
        self._library, self._threads, self._iterations = library, threads, len(polynomials)
        self._coefficients = (ctypes.c_float * (3 * len(polynomials)))(*chain.from_iterable(polynomials))
        self._workspace = torch.empty(0, dtype=torch.uint8)  # kept: asking for it anew costs more than small matrices

    def update(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        buffers: Sequence[Tensor],
        scales: Sequence[float],
        momentum: float,
        keep: float,
    ) -> None:
        """`FusedUpdate` of (r, c) fp32 matrices, which are contiguous."""
        assert all(matrix.is_contiguous() for matrices in (parameters, gradients, buffers) for matrix in matrices)
        work = [-p.numel() * min(p.shape) for p in parameters]
        order = sorted(range(len(parameters)), key=work.__getitem__)  # the dearest first
        jobs = (_MuonJob * len(parameters))()
        for job, i in zip(jobs, order, strict=True):
            job.parameter, job.gradient, job.momentum = (
                tensors[i].data_ptr() for tensors in (parameters, gradients, buffers)
            )
            job.rows, job.columns = sorted(parameters[i].shape)
            job.tall, job.scale = parameters[i].shape[0] > parameters[i].shape[1], scales[i]
        calls, backend = self._library.calls, ctypes.byref(self._library.backend)
        size = max(calls.muon_workspace_bytes(job.rows, job.columns) for job in jobs)
        if len(self._workspace) < size * self._threads + 64:
            self._workspace = torch.empty(size * self._threads + 64, dtype=torch.uint8)
        workspace = self._workspace.data_ptr() + -self._workspace.data_ptr() % 64
        settings = (self._coefficients, self._iterations, momentum, 1.0 - momentum, keep)
        calls.muon_update(backend, jobs, len(jobs), *settings, workspace, size, self._threads)
