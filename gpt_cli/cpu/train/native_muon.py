"""Muon's orthogonalisation by compiled code."""

import ctypes
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from gpt_cli.cpu.train.train_bindings import NativeLibrary


class _NewtonSchulzJob(ctypes.Structure):
    """`NewtonSchulzJob` of muon.c."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rows", "columns", "tall")),
        ("scale", ctypes.c_float),
    )


class NativeNewtonSchulz:
    """Compiled code for `gpt_cli.training.muon.newton_schulz_batched`, each matrix by one thread.

    What it needs, and what it gives, is kept for the next call with the same shapes: memory that is asked of the
    system anew costs more than the work on small matrices.
    """

    def __init__(self, library: NativeLibrary, threads: int, polynomials: Sequence[Sequence[float]]) -> None:
        """`polynomials`: the three coefficients of each iteration."""
        self._library, self._threads, self._iterations = library, threads, len(polynomials)
        self._coefficients = (ctypes.c_float * (3 * len(polynomials)))(*chain.from_iterable(polynomials))
        self._results: list[Tensor] = []
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def __call__(self, matrices: Sequence[Tensor], scales: Sequence[float]) -> list[Tensor]:
        """(r, c) fp32 matrices -> as many of the same shapes, each of U S V^T about U V^T times its scale.

        The results are overwritten by the next call.
        """
        sources = [matrix.contiguous() for matrix in matrices]
        if [matrix.shape for matrix in sources] != [result.shape for result in self._results]:
            self._results = [torch.empty_like(matrix) for matrix in sources]
        order = sorted(
            range(len(sources)), key=lambda i: -sources[i].numel() * min(sources[i].shape)
        )  # the dearest first
        jobs = (_NewtonSchulzJob * len(sources))()
        for job, i in zip(jobs, order, strict=True):
            rows, columns = sorted(sources[i].shape)
            job.matrix, job.out = sources[i].data_ptr(), self._results[i].data_ptr()
            job.scale = scales[i]
            job.rows, job.columns, job.tall = rows, columns, sources[i].shape[0] > sources[i].shape[1]
        calls, backend = self._library.calls, ctypes.byref(self._library.backend)
        size = max(calls.newton_schulz_bytes(job.rows, job.columns) for job in jobs)
        if len(self._workspace) < size * self._threads + 64:
            self._workspace = torch.empty(size * self._threads + 64, dtype=torch.uint8)
        workspace = self._workspace.data_ptr() + -self._workspace.data_ptr() % 64
        calls.newton_schulz(
            backend, jobs, len(jobs), self._coefficients, self._iterations, workspace, size, self._threads
        )
        return list(self._results)
