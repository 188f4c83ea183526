"""What training frameworks print of each iteration: a table of formats, a few expressions with named groups each.

A group's name is what it tells and its unit: time_s, time_ms (of a step), steps_per_s, samples_per_s (of the job),
tokens_per_s_per_gpu, tflops (per GPU), memory_gib, memory_mib (peak of a rank), step, batch
(sequences per step). An expression finds as many of an iteration's facts as one piece of text holds.
"""

import re
from dataclasses import dataclass
from re import Pattern

NUMBER = r"[0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?"


@dataclass(frozen=True)
class LogFormat:
    """How one framework's log is read.

    marks: texts of which a line with a fact has one, which is quick to see. begins: begins an iteration's text, so
    that two writers' lines in one are told apart; facts: searched for in it, and those of `anywhere` in other lines.
    source: where the text is printed.
    """

    name: str
    marks: tuple[str, ...]
    begins: Pattern[str]
    facts: tuple[Pattern[str], ...]
    source: str
    anywhere: tuple[Pattern[str], ...] = ()


def _all(*texts: str) -> tuple[Pattern[str], ...]:
    return tuple(re.compile(text.replace("NUMBER", NUMBER)) for text in texts)


FORMATS = (
    LogFormat(
        "torchtitan",
        ("step:",),
        re.compile(r"(?<!\w)(?<!validate )step: +\d+ .{0,80}?loss: "),
        _all(
            r"step: +(?P<step>\d+)",
            r"memory: +(?P<memory_gib>NUMBER)GiB",
            r"tps: (?P<tokens_per_s_per_gpu>NUMBER)(?= )",
            r"tflops: (?P<tflops>NUMBER)",
        ),
        "torchtitan/components/metrics.py, MetricsProcessor.log",
    ),
    LogFormat(
        "nanotron",
        ("iteration:", "Peak reserved"),
        re.compile(r"iteration: *\d+ */ *\d+ \| "),
        _all(
            r"iteration: *(?P<step>\d+)",
            r"time_per_iteration_ms: *(?P<time_ms>NUMBER[KM]?)(?= \|)",
            r"tokens_per_sec_per_gpu: *(?P<tokens_per_s_per_gpu>NUMBER[KM]?)",
            r"global_batch_size: *(?P<batch>NUMBER[KM]?)",
            r"hardware_tflops_per_gpu: *(?P<tflops>NUMBER)",
        ),
        "nanotron/trainer.py, train_step_logs",
        _all(r"Peak reserved: *(?P<memory_mib>NUMBER)MiB"),
    ),
    LogFormat(
        "NeMo",
        ("reduced_train_loss",),
        re.compile(r"Training epoch \d+, iteration \d+/\d+ \||reduced_train_loss="),
        _all(
            r"global_step[:=] ?(?P<step>NUMBER)",
            r"train_step_timing in s[:=] ?(?P<time_s>NUMBER)",
            r"global_batch_size[:=] ?(?P<batch>\d+)",
            r"TFLOPS_per_GPU[:=] ?(?P<tflops>NUMBER)",
        ),
        "nemo/lightning/pytorch/callbacks/progress_printer.py; Lightning's progress bar in NeMo 1",
    ),
    LogFormat(
        "Megatron-LM or Megatron-Bridge",
        ("iteration ", "max reserved", "MODEL_TFLOP"),
        re.compile(r"iteration +\d+/ *\d+ \|"),
        _all(
            r"iteration +(?P<step>\d+)/",
            r"elapsed time per iteration \(ms\): (?:NUMBER/)?(?P<time_ms>NUMBER)(?= \|)",
            r"(?:\(TFLOP/s/GPU\)|TFLOPs): (?P<tflops>NUMBER)",
            r"global batch size: +(?P<batch>\d+)",
        ),
        "megatron/training/training.py, training_log; memory: megatron/training/utils.py, report_memory",
        _all(r"max reserved: (?P<memory_mib>NUMBER)", r"GPU utilization: (?P<tflops>NUMBER) ?MODEL_TFLOP/s/GPU"),
    ),
    LogFormat(
        "DeepSpeed",
        ("SamplesPerSec=",),
        re.compile(r"(?:global_step=|stop\] \d+/)\d+, RunningAvgSamplesPerSec="),
        _all(
            r"(?:global_step=|\] \d+/)(?P<step>\d+)",
            r"CurrSamplesPerSec=(?P<samples_per_s>NUMBER)(?=,)",
            r"MaxMemAllocated=(?P<memory_gib>NUMBER)GB",
        ),
        "deepspeed/utils/timer.py, ThroughputTimer.stop",
    ),
    LogFormat(
        "Hugging Face Trainer",
        ("s/it", "it/s"),
        _all(r"(?<!\d)\d{1,12}/\d{1,12} \[[0-9:]{1,12}<[0-9:]{1,12}, +NUMBER(?:s/it|it/s)")[0],
        _all(r"(?P<step>\d{1,12})/\d{1,12} \[", r", +(?P<time_s>NUMBER)s/it", r", +(?P<steps_per_s>NUMBER)it/s"),
        "tqdm's bar of transformers/trainer_callback.py, ProgressCallback",
    ),
)
"""In the order in which they are tried: NeMo's `Training epoch 0, iteration 1/9 |` before Megatron's iteration."""
