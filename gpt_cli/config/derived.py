"""Defaults that depend on other keys: on the task, on the template of pairs and chats, on the recipe.

A model of pairs or chats continues `sample.prefix` + prompt + `sample.suffix`, up to `sample.stop`: these keys default
to the template of `data`, so that everything that samples from a run keeps to it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from gpt_cli.config.recipes import RECIPES
from gpt_cli.config.section import given_values

if TYPE_CHECKING:
    from gpt_cli.config.yaml_reader import ParsedYaml

ROLES = ("system", "user", "assistant")


def fill_open_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of a config, sections by name, with those that follow from the task, the template and the recipe."""
    filled = dict(values)
    if given_values(values.get("task")).get("kind") == "classes":
        _fill(filled, "data", {"format": "labelled"})
        _fill(filled, "sample", {"every": None})
    filled = sample_section(filled)
    recipe = values.get("recipe")
    for section, settings in RECIPES[recipe].items() if isinstance(recipe, str) and recipe in RECIPES else ():
        _fill(filled, section, settings)
    return filled


def _fill(values: dict[str, Any], section: str, defaults: Mapping[str, Any]) -> None:
    """Have `defaults` stand for what a section of `values` leaves open. Anything but a section is reported later."""
    if isinstance(values.get(section, {}), Mapping | BaseModel):
        values[section] = {**defaults, **given_values(values.get(section))}


def sample_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of a config, sections by name, with the template of its `data` for what `sample` leaves open."""
    data, sample = given_values(values.get("data", {})), values.get("sample", {})
    form, ends = data.get("format", "text"), [data.get("prompt_end", "\x02"), data.get("completion_end", "\x03")]
    if not isinstance(sample, Mapping | BaseModel):
        return dict(values)  # which is reported later, as are ends that are no text
    given = given_values(sample)
    if (form, data.get("documents")) == ("text", "lines"):  # a sample of lines is one line
        return {**values, "sample": {**given, "stop": given.get("stop") or ["\n"]}}
    if form not in ("pairs", "chat") or not all(isinstance(end, str) and end for end in ends):
        return dict(values)
    template = turn(form, *ends)
    return {**values, "sample": template | {key: value for key, value in given.items() if value or key not in template}}


def turn(form: str, prompt_end: str, completion_end: str) -> dict[str, Any]:
    """`prefix` and `suffix` of a user's turn, and the `stop` of the answer."""
    if form == "chat":
        suffix = f"{completion_end}{ROLES[-1]}{prompt_end}"
        return {"prefix": f"{ROLES[1]}{prompt_end}", "suffix": suffix, "stop": [completion_end]}
    return {"prefix": "", "suffix": prompt_end, "stop": [completion_end]}


def forget_format(document: "ParsedYaml", written: Mapping[str, Any]) -> "ParsedYaml":
    """`document`, overrides over the values that a run has `written`, without what follows from its data.format.

    A run writes out the template in `sample`; where an override changes what it is made of, it is made anew. Another
    format also has defaults of its own for data.split and data.too_long. What is overridden stays.
    """
    overridden = {path for path, location in document.locations.items() if location.line is None}
    data, sample = written.get("data"), written.get("sample")
    if not (isinstance(data, Mapping) and isinstance(sample, Mapping)) or overridden.isdisjoint(
        {("data", key) for key in ("format", "documents", "prompt_end", "completion_end")}
    ):
        return document
    template = sample_section({"data": data}).get("sample", {})
    stale = {key for key, value in template.items() if sample.get(key) == value and ("sample", key) not in overridden}
    kept = {key: value for key, value in document.values["sample"].items() if key not in stale}
    now = document.values["data"]
    if any(now.get(key) != data.get(key) for key in ("format", "documents")):
        now = {key: now[key] for key in now if key not in ("split", "too_long") or ("data", key) in overridden}
    return replace(document, values=document.values | {"sample": kept, "data": now})
