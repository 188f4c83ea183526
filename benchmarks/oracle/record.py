"""What one rank runs, keeps and sends in a forward and a backward pass, seen by PyTorch's own dispatch.

Everything runs on fake tensors: shapes, types and storages are real, nothing is computed. A storage counts from the
operator that made it until its last reference is gone, so that what lives between the two passes is what a GPU would
hold, whatever keeps it: autograd, activation checkpointing, or the framework.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = {"mm": ("product", 0), "addmm": ("product", 1), "bmm": ("batched", 0), "baddbmm": ("batched", 1)}
"""Matrix products: batched are those of an unfused attention; and the position of their left operand."""

COLLECTIVES = {
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "all_reduce": "all_reduce",
    "allreduce_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "flex_cp_allgather": "all_gather",
    "flex_cp_allgather_backward": "reduce_scatter",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "send": "send",
}
"""Operators that send, by the collective that they are."""


def unseen(owner: Any, name: str) -> None:
    """Make a function of a framework's invisible to recorders: what it runs only works out shapes."""
    original = getattr(owner, name)

    def hidden(*args: Any, **kwargs: Any) -> Any:
        was, Recorder.paused = Recorder.paused, True
        try:
            return original(*args, **kwargs)
        finally:
            Recorder.paused = was

    setattr(owner, name, hidden)


def parameter_storages(model: torch.nn.Module) -> set[int]:
    """Storages of a model's parameters: sharded, gathered, and the buffers that FSDP gathers them in.

    DeepSpeed's ZeRO 3 keeps a rank's part in `ds_tensor`, and gathers a parameter in a storage of its own each time.
    """
    parts = [part for p in model.parameters() for part in (p, getattr(p, "ds_tensor", None)) if part is not None]
    found = {part.untyped_storage()._cdata for part in parts}
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in module._get_fsdp_state()._fsdp_param_groups:
            for one in group.fsdp_params:
                gathered = getattr(one, "_unsharded_param", None)
                parts = [one._sharded_param_data, gathered, *one.all_gather_outputs]
                parts += list(getattr(one, "_unsharded_inner_tensors", None) or [])
                for part in parts:
                    local = getattr(part, "_local_tensor", part)
                    if local is not None:
                        found.add(local.untyped_storage()._cdata)
    return found


SENDERS = {"c10d", "_c10d_functional", "c10d_functional", "cplib"}
"""Their namespaces."""


class Recorder(TorchDispatchMode):
    """Operators, living storages and collectives of what runs inside it.

    `phase` is set by who drives it: forward, loss, backward. `paused`: nothing is noted, of any recorder.
    """

    paused = False

    def __init__(self, model: torch.nn.Module, groups: dict[str, str]) -> None:
        super().__init__()
        self.phase = "forward"
        self.flops: Counter[tuple[str, str, str]] = Counter()
        self.operators: Counter[tuple[str, str, str, str]] = Counter()
        self.sent: Counter[tuple[str, str, str]] = Counter()
        self.calls: Counter[tuple[str, str, str]] = Counter()
        self.peak = 0
        self._groups = groups
        self._live: dict[int, tuple[weakref.ref[Any], str, str, str]] = {}
        self._where: list[str] = []
        self._names = {module: name for name, module in model.named_modules()}
        self._model = model
        self._buffers = {x.untyped_storage()._cdata for x in model.buffers()}

    @contextmanager
    def watching(self) -> Any:
        """The recorder with hooks that tell in which module an operator runs."""
        hooks = torch.nn.modules.module
        with ExitStack() as stack:
            before = hooks.register_module_forward_pre_hook(self._enter)
            after = hooks.register_module_forward_hook(self._leave, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
            stack.enter_context(self)
            yield self

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        self._where.append(self._names.get(module, self._where[-1] if self._where else ""))

    def _leave(self, *_: Any) -> None:
        if self._where:
            self._where.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; note what it makes, computes and sends."""
        if any(issubclass(t, torch.distributed.tensor.DTensor) for t in types):
            return NotImplemented
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if Recorder.paused:
            return out
        where = self._where[-1] if self._where else ""
        name = func._schema.name.split("::")[-1]
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, name, where)
        self._count(func, name, where, args, kwargs, out)
        return out

    def _note(self, tensor: torch.Tensor, name: str, where: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._buffers or key in self._live:
            return

        def gone(_: Any, key: int = key) -> None:
            self._live.pop(key, None)

        shape = "x".join(map(str, tensor.shape)) + " " + str(tensor.dtype).removeprefix("torch.")
        self._live[key] = (weakref.ref(storage, gone), name, where, shape)

    def living(self) -> list[tuple[int, str, str, str]]:
        """Bytes, operator, module and shape of each storage that lives now, parameters and buffers apart."""
        found, constant = [], self._buffers | parameter_storages(self._model)
        for key, (reference, name, where, shape) in list(self._live.items()):
            storage = reference()
            if storage is not None and storage.nbytes() and key not in constant:
                found.append((storage.nbytes(), name, where, shape))
        return found

    def _count(self, func: Any, name: str, where: str, args: Any, kwargs: Any, out: Any) -> None:
        if name in COLLECTIVES and func._schema.name.split("::")[0] in SENDERS:
            self._collective(func, COLLECTIVES[name], args, kwargs, out)
        elif name in PRODUCTS:
            kind, at = PRODUCTS[name]
            left, right = args[at], args[at + 1]
            self.flops[self.phase, kind, where] += 2 * left.numel() * right.shape[-1]
        elif name == "_grouped_mm":
            left, right = args[0], args[1]
            self.flops[self.phase, "grouped", where] += 2 * left.shape[-2] * left.shape[-1] * right.shape[-1]
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(args)):
            shapes = ", ".join("x".join(map(str, a.shape)) for a in tree_leaves(args) if isinstance(a, torch.Tensor))
            self.operators[self.phase, where, name, shapes] += 1

    def _collective(self, func: Any, kind: str, args: Any, kwargs: Any, out: Any) -> None:
        """Bytes of the whole tensor: what an all-gather ends with, what a reduction starts from."""
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        sides = (tensors[:2], results) if func.namespace == "cplib" else (tensors[:1], results[:1], tensors[1:2])
        size = max(sum(t.numel() * t.element_size() for t in side) for side in sides)
        group = next((self._groups[g] for g in map(_group_name, tree_leaves((args, kwargs))) if g in self._groups), "?")
        self.sent[self.phase, kind, group] += size
        self.calls[self.phase, kind, group] += 1


def _group_name(argument: Any) -> str:
    """The name by which a collective's argument says its group, or an empty one."""
    if isinstance(argument, str):
        return argument
    if isinstance(argument, torch.ScriptObject):
        try:
            return str(torch.distributed.ProcessGroup.unbox(argument).group_name)
        except (RuntimeError, TypeError):
            return ""
    return str(getattr(argument, "group_name", ""))
