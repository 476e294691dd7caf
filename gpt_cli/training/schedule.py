"""The factor on the learning rates as a pure function of the step: checkpoints need not have it (but see
`schedule_clock`)."""

import math

from gpt_cli.config import ScheduleConfig


def lr_multiplier(step: float, steps: int, config: ScheduleConfig) -> float:
    """The factor on the peak learning rate in update `step` (from 0) of `steps`; in (0, 1] before the end.

    Warm-up is linear and its first update is not zero; then the chosen decay ends at `min_lr_ratio`.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)  # 0 to 1 over the rest
    low = config.min_lr_ratio
    match config.kind:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - (1.0 - low) * progress
        case "cosine":
            return low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "wsd":
            start = max(config.warmup_steps, steps * (1.0 - config.decay_fraction))
            return 1.0 - (1.0 - low) * max(0.0, step - start) / max(1.0, steps - start)


def schedule_warning(steps: int, config: ScheduleConfig) -> str | None:
    """The part of the schedule that a warm-up leaves no room for in `steps`: its peak, or most of its decay.

    None where there is room.
    """
    warmup, decay = config.warmup_steps, config.decay_fraction * steps
    because = f"schedule.warmup_steps is {warmup:,}"
    if 0 < steps <= warmup:
        return f"{100 * lr_multiplier(steps - 1, steps, config):.2g}% of its peak at the end: {because}"
    if config.kind == "wsd" and 0 < steps - warmup < decay / 2:
        return f"falls in {steps - warmup:,} steps, not in {decay:.0f}: {because}"
    return None
