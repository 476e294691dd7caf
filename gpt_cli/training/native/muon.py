"""Muon's orthogonalisation by compiled code."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt_cli.training.muon import POLAR_EXPRESS
from gpt_cli.training.native.library import NativeLibrary


class _Job(ctypes.Structure):
    """`Job` of muon.c."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rows", "columns", "tall")),
        ("scale", ctypes.c_float),
    )


def orthogonalise(
    library: NativeLibrary, matrices: Sequence[Tensor], scales: Sequence[float], threads: int
) -> list[Tensor]:
    """(r, c) fp32 matrices -> as many of the same shapes, each of U S V^T about U V^T times its scale.

    See `gpt_cli.training.muon.orthogonalised`.
    """
    sources = [matrix.contiguous() for matrix in matrices]
    results = [torch.empty_like(matrix) for matrix in sources]
    order = sorted(range(len(sources)), key=lambda i: -sources[i].numel() * min(sources[i].shape))  # the dearest first
    jobs = (_Job * len(sources))()
    for job, i in zip(jobs, order, strict=True):
        rows, columns = sorted(sources[i].shape)
        job.matrix, job.out = sources[i].data_ptr(), results[i].data_ptr()
        job.scale = scales[i]
        job.rows, job.columns, job.tall = rows, columns, sources[i].shape[0] > sources[i].shape[1]
    size = max(library.calls.orthogonalise_bytes(job.rows, job.columns) for job in jobs)
    room = torch.empty(size * threads + 64, dtype=torch.uint8)
    steps = (ctypes.c_float * (3 * len(POLAR_EXPRESS)))(*(x for step in POLAR_EXPRESS for x in step))
    aligned = room.data_ptr() + -room.data_ptr() % 64
    library.calls.orthogonalise(
        ctypes.byref(library.backend), jobs, len(jobs), steps, len(POLAR_EXPRESS), aligned, size, threads
    )
    return results
