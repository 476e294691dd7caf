"""The runs that are served, by name: opened when first asked for, and anew when they have a new checkpoint."""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_cli.config import Config, SampleConfig
from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.quantize import WeightDtype
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.literals import Device
from gpt_cli.run.checkpoint import Checkpoint, checkpoint_step, list_checkpoints, open_checkpoint
from gpt_cli.run.directory import RUN, find_run, sample_defaults
from gpt_cli.sampling.native_stream import EngineChoice as EngineName
from gpt_cli.sampling.text_generator import TextGenerator
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.text_engine import NativeTextEngine, TextEngine
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT

_OLD_STEPS = 4  # checkpoints that are kept open because somebody asked for them by their step


@dataclass(frozen=True)
class EngineOptions:
    """Device, engine and dtype of the served models."""

    device: Device = "auto"
    engine: EngineName = "auto"
    weights: WeightDtype = "fp32"


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A checkpoint that is open: all that a request needs. A newer one of the same run is another object."""

    name: str
    checkpoint: Path
    step: int
    config: Config
    tokenizer: Tokenizer
    engine: TextEngine = field(repr=False)
    defaults: SampleConfig
    weights_sha256: str
    created: int
    writer: TextGenerator = field(repr=False)

    @property
    def network(self) -> "GPT":
        """The model in torch, which is built when first asked for."""
        return self.writer.model

    @property
    def context_length(self) -> int:
        """Tokens that the model sees at once."""
        return self.config.model.context_length

    @property
    def fingerprint(self) -> str:
        """The fingerprint by which clients see if the same model answers."""
        return f"{self.weights_sha256[:12]}-{self.engine.name}"


class ModelRegistry:
    """All runs by name."""

    def __init__(self, runs: list[Path], how: EngineOptions, note: Notify) -> None:
        """Raises RequestError for what is no run, and where two have one name."""
        self.paths: dict[str, Path] = {}
        self._how, self._note = how, note
        self._open: dict[str, ServedModel] = {}
        self._steps: OrderedDict[str, ServedModel] = OrderedDict()
        self._lock = asyncio.Lock()
        for run in runs:
            for path in expand(run):
                name = name_of(path)
                if self.paths.get(name, path) != path:
                    raise RequestError(
                        f"two runs are called {name}: {self.paths[name]}, and {path}", hint="rename the folder of one"
                    )
                self.paths[name] = path
        self.first = next(iter(self.paths))

    async def get(self, name: str | None) -> ServedModel:
        """The run called `name` (None: the first), or `NAME@STEP`, one of its checkpoints. Raises ApiError 404."""
        run, at, step = (name or self.first).partition("@")
        if run not in self.paths or (at and not (step.isascii() and step.isdigit() and len(step) < 13)):
            known = ", ".join(list(self.paths)[:20])
            raise ApiError(404, f"there is no model {name}; there is: {known}", param="model", code="model_not_found")
        if not at and run in self._open:
            return self._open[run]
        async with self._lock:
            if not at:
                if run not in self._open:
                    self._open[run] = await self._load(run, self.paths[run])
                return self._open[run]
            return await self._at(run, int(step))

    async def open_first(self) -> ServedModel:
        """The first run, so that what is wrong with it is said at once. Raises what opening a checkpoint raises."""
        self._open[self.first] = await asyncio.to_thread(self._read, self.first, self.paths[self.first])
        return self._open[self.first]

    async def refresh(self) -> list[ServedModel]:
        """Open what is newer than what is open, and let it take its place: the models that changed.

        Texts that are being written go on with the model that they began with.
        """
        changed = []
        for name, model in list(self._open.items()):
            newest = self.steps(name)
            if newest and newest[-1] > model.step:
                try:
                    fresh = await self._load(name, self.paths[name])
                except ApiError as problem:
                    self._note(f"{name}: the newest checkpoint cannot be used: {problem.message}")
                    continue
                if fresh.step != model.step:
                    self._open[name] = fresh
                    changed.append(fresh)
        return changed

    def steps(self, name: str) -> list[int]:
        """The steps of the checkpoints of a run, in order; none of what is a checkpoint itself."""
        path = self.paths[name]
        return sorted(map(checkpoint_step, list_checkpoints(path))) if (path / RUN).is_file() else []

    async def _at(self, run: str, step: int) -> ServedModel:
        if step not in self.steps(run):
            raise ApiError(404, f"{run} has no checkpoint of step {step}", param="model", code="model_not_found")
        name = f"{run}@{step}"
        if name not in self._steps:
            path = next(path for path in list_checkpoints(self.paths[run]) if checkpoint_step(path) == step)
            self._steps[name] = await self._load(name, path)
        self._steps.move_to_end(name)
        while len(self._steps) > _OLD_STEPS:
            self._steps.popitem(last=False)
        return self._steps[name]

    async def _load(self, name: str, path: Path) -> ServedModel:
        try:
            return await asyncio.to_thread(self._read, name, path)
        except UserError as error:
            self._note(error.render())
            raise ApiError(503, f"the model {name} cannot be opened now: its checkpoint cannot be used") from None

    def _read(self, name: str, path: Path) -> ServedModel:
        return open_model(name, path, self._how, self._note, sample_defaults(self.paths[name.partition("@")[0]]))


def open_model(name: str, path: Path, how: EngineOptions, note: Notify, defaults: SampleConfig | None) -> ServedModel:
    """The model of a run or checkpoint. Raises what opening a checkpoint raises."""
    saved = open_checkpoint(path, note)
    writer = TextGenerator(
        saved.config.model,
        saved.tokenizer,
        saved.model_arrays,
        lambda: _in_torch(saved, how.device),
        device=how.device,
        engine=how.engine,
        weights=how.weights,
        note=note,
    )
    decoder = writer.decoder if writer.writes_natively() else None
    engine = _by_kernel(decoder, saved) if isinstance(decoder, NativeDecoder) else _by_torch(writer)
    return ServedModel(
        name=name,
        checkpoint=saved.path,
        step=saved.step,
        config=saved.config,
        tokenizer=saved.tokenizer,
        engine=engine,
        defaults=defaults or saved.config.sample,
        weights_sha256=saved.weights_sha256,
        writer=writer,
        created=int(saved.path.stat().st_mtime) if saved.path.exists() else int(time.time()),
    )


def _by_kernel(decoder: NativeDecoder, saved: Checkpoint) -> TextEngine:
    return NativeTextEngine(decoder, saved.tokenizer)


def _by_torch(writer: TextGenerator) -> TextEngine:
    from gpt_cli.serve.torch_text_engine import TorchTextEngine  # noqa: PLC0415 - it imports torch

    return TorchTextEngine(writer.model)


def _in_torch(saved: Checkpoint, device: Device) -> "GPT":
    from gpt_cli.run.load_model import build_model  # noqa: PLC0415 - they import torch
    from gpt_cli.runtime.device import choose_device  # noqa: PLC0415

    return build_model(saved, choose_device(device)).model


def expand(path: Path) -> list[Path]:
    """The run or checkpoint at `path`, or the runs with a checkpoint in that folder. Raises RequestError for none."""
    if path.is_dir() and not (path / RUN).is_file():
        inside = [one for one in sorted(path.iterdir()) if (one / RUN).is_file() and list_checkpoints(one)]
        if inside:
            return inside
    return [find_run(path)]


def name_of(path: Path) -> str:
    """The name of a run: its directory; a checkpoint, RUN-STEP."""
    whole = path.resolve()
    if whole.parent.name == "checkpoints":
        return f"{whole.parent.parent.name}-{whole.name}"
    return whole.stem if whole.is_file() else whole.name
