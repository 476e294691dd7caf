"""The served models by name. A run is opened at its first request, and its newer checkpoint where there is one."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_cli.config import Config, SampleConfig, load_config
from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.weight_formats import WeightDtype
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.files.kinds import names_checkpoint
from gpt_cli.literals import Device
from gpt_cli.run.checkpoint import CONFIG, checkpoint_step, list_checkpoints
from gpt_cli.run.find_run import config_now, find_run, named_checkpoint, no_such_checkpoint
from gpt_cli.run.open_checkpoint import (
    TaskError,
    build_torch_model,
    no_checkpoint,
    open_checkpoint,
    refuse_other_task,
)
from gpt_cli.run.overfitting import note_better_checkpoint
from gpt_cli.run.run_files import RUN
from gpt_cli.sampling.native_decoder import EngineChoice as EngineName
from gpt_cli.sampling.text_generator import TextGenerator
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.text_engine import NativeTextEngine, TextEngine
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT

_LISTED = 20  # names in an error
_MAX_CHECKPOINTS = 4  # that stay open after a request for NAME@STEP or NAME@best


@dataclass(frozen=True)
class EngineOptions:
    """Device, engine and dtype of the served models."""

    device: Device = "auto"
    engine: EngineName = "auto"
    weights: WeightDtype = "fp32"

    def flags(self) -> dict[str, str]:
        """The options of `gpt sample`, without dashes, that compute the same; those with the default are left out."""
        named = {"device": self.device, "engine": self.engine, "dtype": self.weights}
        return {name: value for name, value in named.items() if value not in ("auto", "fp32")}


@dataclass(frozen=True, eq=False)
class ServedModel:
    """An open checkpoint. A newer checkpoint of the same run is another object."""

    name: str
    step: int
    config: Config
    tokenizer: Tokenizer
    engine: TextEngine = field(repr=False)
    defaults: SampleConfig
    weights_sha256: str
    created: int
    generator: TextGenerator = field(repr=False)

    @property
    def network(self) -> "GPT":
        """The model in torch. It is built at the first access."""
        return self.generator.model

    @property
    def context_length(self) -> int:
        """The number of tokens that the model attends to."""
        return self.config.model.context_length

    @property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: equal for equal weights and engine."""
        return f"{self.weights_sha256[:12]}-{self.engine.name}"


class ModelRegistry:
    """All served runs by name."""

    def __init__(self, runs: list[Path], options: EngineOptions, note: Notify) -> None:
        """Raises RequestError for a path that is no run, and where two runs have one name."""
        self.paths: dict[str, Path] = {}
        self.options, self._note = options, note
        self._newest: dict[str, ServedModel] = {}
        self._by_step: OrderedDict[str, ServedModel] = OrderedDict()
        self._lock = asyncio.Lock()
        self._found: set[str] = set()
        """The runs of folders, which nobody has named."""
        for run in runs:
            paths, is_folder = expand(run, note)
            for path in paths:
                name = run_name(path)
                if is_folder and name not in self.paths:
                    self._found.add(name)
                elif not is_folder:
                    self._found.discard(name)
                if self.paths.setdefault(name, path).resolve() != path.resolve():
                    raise RequestError(
                        f"two runs are called {name}: {self.paths[name]}, and {path}", hint="rename the folder of one"
                    )
        self.first = next(iter(self.paths))

    async def get(self, name: str | None) -> ServedModel:
        """The newest checkpoint of the run `name` (None: of the first run), or for NAME@STEP or NAME@best that one.

        Raises ApiError 404 where there is none.
        """
        run, which = self._parse(self.first if name is None else name)
        if run not in self.paths or (which is not None and not names_checkpoint(which)):
            known = ", ".join(list(self.paths)[:_LISTED])
            more = f" and {len(self.paths) - _LISTED} more" if len(self.paths) > _LISTED else ""
            message = f"there is no model {name or repr(name)}; there is: {known}{more}"
            raise ApiError(404, message, param="model", code="model_not_found")
        if which is None and run in self._newest:
            return self._newest[run]
        async with self._lock:
            if which is not None:
                return await self._get_checkpoint(run, which)
            if run not in self._newest:
                self._newest[run] = await self._load(run, self.paths[run])
            return self._newest[run]

    async def open_first(self) -> ServedModel:
        """Open the first run, so that an error in it ends the start. Raises what opening a checkpoint raises.

        Of a folder the first that can be opened; those before it are left out.
        """
        while True:
            try:
                self._newest[self.first] = await asyncio.to_thread(self._read, self.first, self.paths[self.first])
            except UserError as error:
                if self.first not in self._found or len(self.paths) == 1:
                    raise
                self._note(f"{self.paths[self.first]} is not served: {error.message}")
                del self.paths[self.first]
                self.first = next(iter(self.paths))
            else:
                return self._newest[self.first]

    async def refresh(self) -> list[ServedModel]:
        """Replace open models that have a newer checkpoint. Returns the new ones.

        Sequences that are being generated keep their model.
        """
        replaced = []
        for name, model in list(self._newest.items()):
            newest = self.steps(name)
            if newest and newest[-1] > model.step:
                try:
                    newer = await self._load(name, self.paths[name])
                except ApiError as error:
                    self._note(f"{name}: the newest checkpoint cannot be used: {error.message}")
                    continue
                if newer.step != model.step:
                    self._newest[name] = newer
                    replaced.append(newer)
        return replaced

    def steps(self, name: str) -> list[int]:
        """The steps of the checkpoints of a run, in order. Empty where the path is a checkpoint."""
        path = self.paths[name]
        return sorted(map(checkpoint_step, list_checkpoints(path))) if (path / RUN).is_file() else []

    def _parse(self, name: str) -> tuple[str, str | None]:
        """(run, which) of NAME@STEP and NAME@best, or (run, None); a run may have an @ in its name."""
        run, separator, which = name.rpartition("@")
        return (run, which) if separator and name not in self.paths else (name, None)

    async def _get_checkpoint(self, run: str, which: str) -> ServedModel:
        path = await asyncio.to_thread(named_checkpoint, self.paths[run], which)
        if path is None:
            if not self.paths[run].exists():
                raise ApiError(503, f"the model {run} is no longer where it was")
            raise ApiError(404, no_such_checkpoint(run, which), param="model", code="model_not_found")
        name = f"{run}@{checkpoint_step(path)}"
        if name not in self._by_step:
            self._by_step[name] = await self._load(name, path)
        self._by_step.move_to_end(name)
        while len(self._by_step) > _MAX_CHECKPOINTS:
            self._by_step.popitem(last=False)
        return self._by_step[name]

    async def _load(self, name: str, path: Path) -> ServedModel:
        try:
            return await asyncio.to_thread(self._read, name, path)
        except TaskError:
            raise ApiError(400, f"{name} classifies texts: it predicts no tokens", param="model") from None
        except UserError as error:
            if not path.exists():
                self._note(f"{path}, which was to be served as {name}, is no longer there")
                raise ApiError(503, f"the model {name} is no longer where it was") from None
            self._note(error.render())
            raise ApiError(503, f"the model {name} cannot be opened now: its checkpoint cannot be used") from None

    def _read(self, name: str, path: Path) -> ServedModel:
        now = config_now(self.paths[self._parse(name)[0]])
        model = open_model(name, path, self.options, self._note, None if now is None else now.sample)
        if name not in self._newest:  # else it is a newer checkpoint of a run that is served already
            note_better_checkpoint(path, model.step, self._note)
        return model


def open_model(
    name: str, path: Path, options: EngineOptions, note: Notify, defaults: SampleConfig | None
) -> ServedModel:
    """The model of a run or checkpoint. Raises what opening a checkpoint raises."""
    saved = open_checkpoint(path, note)
    generator = TextGenerator(
        saved,
        partial(build_torch_model, saved, options.device),
        device=options.device,
        engine=options.engine,
        weights=options.weights,
        note=note,
    )
    decoder = generator.decoder if generator.uses_native_decoder() else None
    engine = (
        NativeTextEngine(decoder, saved.tokenizer) if isinstance(decoder, NativeDecoder) else _torch_engine(generator)
    )
    return ServedModel(
        name=name,
        step=saved.step,
        config=saved.config,
        tokenizer=saved.tokenizer,
        engine=engine,
        defaults=defaults or saved.config.sample,
        weights_sha256=saved.weights_sha256,
        generator=generator,
        created=created_at(saved.path),
    )


def _torch_engine(generator: TextGenerator) -> TextEngine:
    from gpt_cli.serve.torch_text_engine import TorchTextEngine  # noqa: PLC0415 - it imports torch

    return TorchTextEngine(generator.model)


def expand(path: Path, note: Notify) -> tuple[list[Path], bool]:
    """(the run or checkpoint at `path`, or all language models with a checkpoint in that folder; True for a folder).

    Raises RequestError where there is none.
    """
    if path.is_dir() and not (path / RUN).is_file():
        found = [child for child in sorted(path.iterdir()) if (child / RUN).is_file()]
        runs = [child for child in found if list_checkpoints(child)]
        for child in found:
            if child not in runs:
                note(f"{child} is not served: it has no checkpoint yet")
        if served := [run for run in runs if _is_language_model(run, note)]:
            return served, True
        if runs:
            raise RequestError(f"none of the runs in {path} can be served", hint="gpt serve RUN names one")
    run = find_run(path)
    if (run / RUN).is_file() and not list_checkpoints(run):
        raise no_checkpoint(run)
    if (run / RUN).is_file() and (run / CONFIG).is_file():  # a checkpoint says so when it is opened
        refuse_other_task(run, load_config(run / CONFIG), "language")
    return [run], False


def _is_language_model(run: Path, note: Notify) -> bool:
    """False, with a note that says why, for a run of a folder that cannot be served."""
    try:
        if load_config(run / CONFIG).task.kind == "language":
            return True
        note(f"{run} is not served: it classifies texts")
    except UserError as error:
        note(f"{run} is not served: {error.message}")
    return False


def created_at(path: Path) -> int:
    """The time at which the newest checkpoint of a run, or the checkpoint, was saved (Unix time); 0 if it is gone."""
    newest = next(iter(list_checkpoints(path)), path)
    try:
        return int(newest.stat().st_mtime)
    except OSError:
        return 0


def run_name(path: Path) -> str:
    """The name of a run is that of its directory; of a checkpoint, RUN-STEP."""
    absolute = path.resolve()
    if absolute.parent.name == "checkpoints":
        return f"{absolute.parent.parent.name}-{absolute.name}"
    return absolute.name
