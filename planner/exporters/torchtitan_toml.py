"""torchtitan before February 2026: a TOML job file. Keys read in torchtitan 0.2.2, config/job_config.py."""

from planner.base.errors import LayoutError
from planner.exporters import torchtitan
from planner.exporters.file_text import comments, quoted
from planner.exporters.nearest import Job, Nearest
from planner.exporters.target import Target
from planner.exporters.torchtitan import Torchtitan
from planner.exporters.torchtitan_models import registered
from planner.models import Transformer

ALONE = "a rank whose states nobody shares has no FSDP, which moves them to the host"
FLOAT8 = "quantize.linear.float8"
FLOAT8_FIELDS = ('recipe_name = "rowwise"', 'filter_fqns = ["output"]')
"""As 0.3's converter has them: its one recipe, and not the head."""


class TorchtitanToml(Torchtitan):
    """A job file for torchtitan's releases up to 0.2.2."""

    name = "torchtitan-toml"
    title = "torchtitan"
    version = "0.2.2"
    suffix = ".toml"
    takes_base = False
    adapters = None
    head_module = "output"
    splits_backward = True
    runs = Torchtitan.runs.without((ALONE, lambda x: x.offload_optimizer & (x.shards == 1)))

    def check_question(self, model: Transformer, precision: str, base: str | None = None) -> None:
        """A model that it registers, in a precision that is written."""
        Target.check_question(self, model, precision)
        torchtitan.check_precision(precision)
        if precision == "fp8" and not self.narrow(model):
            has = f"precision fp8: experts ({model.name}) in fp8 are a prototype of torchtitan's before 0.3"
            raise LayoutError(f"{has}; recommend with --precision bf16, or --framework torchtitan")
        registered(model, before=True)

    def narrow(self, model: Transformer) -> bool:
        """Not experts: a prototype, without pipelines and context parallelism."""
        return not model.num_experts

    def pipelines(self, model: Transformer) -> bool:
        """Of Llama and DeepSeek alone (`pipelining_fn` of each model's __init__.py)."""
        return registered(model, before=True).module in ("llama3", "deepseek_v3")

    def adapt(self, nearest: Nearest) -> None:
        """Adapts as the recipe does, but replicas stand alone, and tensor parallelism brings sequence parallelism."""
        row = nearest.row
        if row["zero"] == 0 and row["dp"] * row["cp"] > 1 and row["tp"] * row["pp"] * row["cp"] > 1:
            nearest.change("zero", 1, "it has no replicas beside other parallelism")
        super().adapt(nearest)
        if row["offload_optimizer"] and row["dp"] * row["cp"] == row["dp_replicate"]:
            raise nearest.refuse("offload_optimizer", f"can't do it: {ALONE}", "recommend --framework torchtitan")
        if row["tp"] > 1:
            nearest.change("sequence_parallel", True, "it comes with tensor parallelism, without a setting")

    def render(self, job: Job) -> str:
        """The TOML tables."""
        row, known = job.row, registered(job.model, before=True)
        fields = torchtitan.parallel_fields(job, self.head_module)
        del fields["enable_sequence_parallel"]
        if row["ep"] > 1:
            fields["expert_tensor_parallel_degree"] = str(row["etp"])
        csv, parts = torchtitan.csv_path(job), torchtitan.compiled(job)
        if csv is not None:
            fields["pipeline_parallel_schedule_csv"] = quoted(str(csv))
        offload = str(row["offload_optimizer"]).lower()
        lines = [
            *comments(job.head),
            "# CONFIG_FILE=THIS_FILE ./run_train.sh; dataset, optimizer, checkpoints and steps are yours to add.",
            *(["# The schedule's path holds from the folder in which this was written."] if csv is not None else []),
            "",
            "[model]",
            f'name = "{known.module}"',
            f'flavor = "{known.flavor}"',
            *([f'converters = ["{FLOAT8}"]', "", f"[{FLOAT8}]", *FLOAT8_FIELDS] if row["precision"] == "fp8" else []),
            "",
            "[training]",
            f"seq_len = {job.model.seq_len}",
            f"global_batch_size = {row['global_batch']}",
            f"local_batch_size = {torchtitan.local_batch(job)}",
            *(['dtype = "bfloat16"'] * (row["main_dtype"] == "bf16")),
            f'mixed_precision_param = "{torchtitan.computed_in(row)}"',
            f'mixed_precision_reduce = "{torchtitan.reduced_in(job)}"',
            f"enable_cpu_offload = {offload}",
            "",
            "[parallelism]",
            *(f"{key} = {value}" for key, value in fields.items()),
            "",
            "[activation_checkpoint]",
            f'mode = "{row["recompute"]}"',
            *(['selective_ac_option = "op"'] if row["recompute"] == "selective" else []),
            *(["", "[compile]", "enable = true", f"components = {parts}"] if parts else []),
            "",
        ]
        return "\n".join(lines)
