"""Where the time of a training step and of a decoding step goes, by torch's profiler."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from decoding import SEARCHES, SOURCE_LENGTH, TARGET_LENGTH, VOCAB_SIZE, random_model
from gpu_results import Results, Setup
from gpu_training import DEFAULT_BATCH_SIZE, build_trainer, read_rows
from measuring import synchronize
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

FIRST, LAST = 8, 12  # updates
LISTED = 5  # kernels in the row; the file has more


class ProfiledUpdates(TrainerCallback):
    """Profile a few updates in the middle of a training."""

    def __init__(self, profiler: profile):
        self.profiler = profiler

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == FIRST:
            synchronize()
            self.profiler.start()
        elif state.global_step == LAST:
            synchronize()
            self.profiler.stop()


def measure_profile(setup: Setup, results: Results) -> None:
    """Add one row for the training of each model, and one for its decoding with each search and batch size."""
    rows = read_rows(setup)
    for name in setup.models:
        results.measure("profile", f"training {name}", partial(_profile_training, setup, name, rows))
        for search, beams in SEARCHES.items():
            for size in (1,) if setup.small else (1, 64):
                run = partial(_profile_decoding, setup, name, beams, size)
                results.measure("profile", f"decoding {name}, {search}, batch of {size}", run)


def _profiler(setup: Setup) -> profile:
    on_gpu = [ProfilerActivity.CUDA] if setup.device.type == "cuda" else []
    return profile(activities=[ProfilerActivity.CPU, *on_gpu])


def _profile_training(setup: Setup, name: str, rows: Any) -> dict[str, Any]:
    settings = {"max_tokens": 500 if setup.small else DEFAULT_BATCH_SIZE, "bf16": setup.device.type == "cuda"}
    trainer, _ = build_trainer(setup, name, rows, {**settings, "max_steps": LAST + 1})
    profiler = _profiler(setup)
    trainer.add_callback(ProfiledUpdates(profiler))
    trainer.train()
    return _summary(setup, f"training_{name}", profiler, LAST - FIRST)


def _profile_decoding(setup: Setup, name: str, beams: int, size: int) -> dict[str, Any]:
    model: Any = random_model(name)
    model.to(setup.device, torch.bfloat16)
    sources = torch.randint(4, VOCAB_SIZE, (size, SOURCE_LENGTH), device=setup.device)
    inputs = {"input_ids": sources, "attention_mask": torch.ones_like(sources)}
    search: Callable[[], object] = partial(model.generate, **inputs, num_beams=beams, max_new_tokens=TARGET_LENGTH)
    search()
    synchronize()
    with _profiler(setup) as profiler:
        search()
        synchronize()
    return _summary(setup, f"decoding_{name}_{beams}_{size}", profiler, TARGET_LENGTH)


def _summary(setup: Setup, name: str, profiler: profile, steps: int) -> dict[str, Any]:
    """Write the tables of a profile to a file, and return times per step and the kernels that take longest."""
    events = profiler.events() or []
    averages = profiler.key_averages()
    spans = [event.time_range for event in events]
    elapsed = max(span.end for span in spans) - min(span.start for span in spans)  # microseconds
    on_gpu = setup.device.type == "cuda"
    kernels = [
        event
        for event in averages
        if event.device_type == torch.autograd.DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    kernels.sort(key=lambda event: event.self_device_time_total, reverse=True)
    busy = sum(event.self_device_time_total for event in kernels)
    tables = [averages.table(sort_by="self_cpu_time_total", row_limit=40, max_name_column_width=80)]
    if on_gpu:
        tables.append(averages.table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=110))
    (setup.output / f"profile_{name}.txt").write_text("\n".join(tables))
    values: dict[str, Any] = {"ms per step": elapsed / steps / 1000}
    if on_gpu:
        values |= {"GPU busy": busy / elapsed, "kernels per step": sum(event.count for event in kernels) / steps}
        longest = (f"{event.self_device_time_total / busy:.1%} {event.key[:60]}" for event in kernels[:LISTED])
        values["longest kernels"] = "; ".join(longest)
    return values
