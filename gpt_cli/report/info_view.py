"""The figures of a model and the plan of a run, for the terminal."""

from gpt_cli.run.model_info import Info
from gpt_cli.search.dry_run import Plan
from gpt_cli.terminal.table import render_pairs, render_table
from gpt_cli.terminal.words import format_duration, format_size, plural
from gpt_cli.training.device_share import DeviceShare


def render_info(info: Info) -> str:
    pairs = {
        "path": info.path,
        "vocabulary": f"{info.vocab_size:,} ids ({info.tokenizer})",
        "context": plural(info.context_length, "token"),
        "step": f"{plural(info.batch_size, 'sequence')}, {info.tokens_per_step:,} tokens",
        "training": f"{info.flops_per_token:,} FLOPs per token",
    }
    if info.checkpoint is not None:
        loss = "" if info.val_loss is None else f", validation loss {info.val_loss:.4f}"
        pairs |= {
            "checkpoint": info.checkpoint,
            "trained": f"{plural(info.step or 0, 'step')}{loss}",
            "weights sha256": str(info.weights_sha256),
        }
    tensors: list[tuple[object, ...]] = [
        (group.name, " x ".join(map(str, group.shape)), group.tensors, group.parameters)
        for group in info.parameter_table
    ]
    total = ("total", "", None, info.parameters)
    memory = {name: format_size(size) for name, size in info.memory_bytes.items()}
    if info.memory_bytes["activations"] == 0:
        memory["activations"] = "freed as gradients are allocated, which need more"
    memory["total"] = format_size(sum(info.memory_bytes.values()))
    return "\n\n".join(
        [
            render_pairs(pairs),
            render_table([*tensors, total], header=("parameters", "shape", "tensors", "elements")),
            "memory to train, estimated\n" + render_pairs(memory),
        ]
    )


def render_share(share: DeviceShare) -> str:
    head = f"each of {share.devices:,} devices"
    if share.refused is not None:
        return f"{head}\n" + render_pairs({"refused": share.refused})
    pairs = {
        "batch": f"{plural(share.sequences, 'sequence')}, {share.micro_batches:,} times {share.micro_batch_size:,}",
        "sends": f"{format_size(share.bytes_sent)} a step",
    }
    if share.bytes_sent_full:
        pairs["sends if full"] = f"{format_size(share.bytes_sent_full)} a step"
    kinds = ("weights", "gradients", "optimizer", "activations", "exchange")
    rows: list[tuple[object, ...]] = [
        (kind, *(format_size(sizes[kind]) for sizes in share.memory_bytes.values())) for kind in kinds
    ]
    rows.append(("at most", *map(format_size, share.totals.values())))
    table = render_table(rows, header=("parallel.shard", *share.memory_bytes))
    return f"{head}\n{render_pairs(pairs)}\n\n{table}"


def render_plan(plan: Plan) -> str:
    saved = plan.saved_step
    if saved is not None:
        saved_text = f"all {plan.steps:,} steps are done" if saved >= plan.steps else f"would go on from step {saved:,}"
        if plan.over is not None:
            saved_text = f"ended at step {saved:,}: {plan.over}"
    pairs = {
        **({} if saved is None else {"run": saved_text}),
        "device": plan.device,
        "inputs": f"{_shape(plan.input_shape)} tokens",
        "logits": _shape(plan.logits_shape),
        "text": f"{plan.train_tokens:,} tokens train, {plan.val_tokens:,} validation",
        "epochs": f"{plan.epochs:.2f}, in {plural(plan.steps, 'step')}",
        "tokens per parameter": f"{plan.tokens_per_parameter:.2f}",
        **({} if plan.schedule_warning is None else {"rate": plan.schedule_warning}),
        "time": _time(plan),
    }
    return f"{render_info(plan.info)}\n\n{render_pairs(pairs)}"


def _time(plan: Plan) -> str:
    if plan.seconds is None or plan.seconds_per_step is None:
        total = format_size(sum(plan.info.memory_bytes.values()))
        return f"not measured: with {total}, a step would need more memory than is free here, or than is tried"
    method = "measured" if len(plan.measured_layers) == 1 else "by what one layer and two take"
    return f"about {format_duration(plan.seconds)} at {1e3 * plan.seconds_per_step:,.0f} ms a step, {method}"


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in sizes)
