"""Context parallelism put on a module by hooks: q, k and v are laid out anew on their way in, the output back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from hyper_parallel_tests.engines.torch_native.context_parallel.layout import heads_per_rank
from hyper_parallel_tests.engines.torch_native.context_parallel.movement import (
    gather_sequence,
    heads_to_sequence,
    sequence_to_heads,
)
from hyper_parallel_tests.engines.torch_native.context_parallel.split import Split, even_split
from hyper_parallel_tests.engines.torch_native.context_parallel.transfers import Route, ToHeads, ToWhole, Transfer

_QKV = ("q", "k", "v")


class ContextParallel:
    """See the port. The shape of the API is HyperParallel's; the hooks are plain PyTorch."""

    def __init__(
        self,
        seq_dim: int = 1,
        head_dim: int = 2,
        ulysses_degree: int | None = None,
        qkv_indices: tuple[int, ...] = (0, 1, 2),
        qkv_kwarg_names: tuple[str, ...] = (),
        *,
        query_kwargs: Mapping[str, int] | None = None,
        key_kwargs: Mapping[str, int] | None = None,
    ) -> None:
        self.seq_dim, self.head_dim = seq_dim, head_dim
        self.ulysses_degree = ulysses_degree
        self.qkv_indices, self.qkv_kwarg_names = qkv_indices, qkv_kwarg_names
        self.query_kwargs, self.key_kwargs = dict(query_kwargs or {}), dict(key_kwargs or {})

    def apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Puts the hooks on ``module``, which is returned."""
        return self._hook(module, device_mesh, partial(_move_now, style=self))

    def _hook(self, module: nn.Module, device_mesh: DeviceMesh, move: Callable[..., Tensor]) -> nn.Module:
        by_heads = self._by_heads(device_mesh.size())
        group = device_mesh.get_group()

        def lay_out(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
            found = _Arguments(args, kwargs)
            names = [self._place(found, number) for number in range(len(_QKV))]
            split = even_split(group, found[names[0]].shape[self.seq_dim])
            for what, name in zip(_QKV, names, strict=True):
                if by_heads or what != "q":
                    found[name] = move(what, found[name], split=split, by_heads=by_heads)
            gathered = self.query_kwargs | self.key_kwargs if by_heads else self.key_kwargs
            for name, dim in gathered.items():
                if isinstance(kwargs.get(name), Tensor):
                    found[name] = gather_sequence(kwargs[name], dim, split)
            return found.args()

        def put_back(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            if not by_heads:
                return output
            split = even_split(group, output.shape[self.seq_dim] // device_mesh.size())
            return heads_to_sequence(output, self.seq_dim, self.head_dim, split)

        module.register_forward_pre_hook(lay_out, with_kwargs=True)
        module.register_forward_hook(put_back)
        return module

    def _by_heads(self, size: int) -> bool:
        degree = size if self.ulysses_degree is None else self.ulysses_degree
        if degree < 1 or size % degree:
            raise ValueError(f"ulysses_degree {degree} does not divide the mesh's {size} ranks")
        if degree not in (1, size):
            raise NotImplementedError(f"ulysses_degree {degree} on {size} ranks: expected 1, or {size} (None)")
        return size > 1 and degree == size

    def _place(self, found: _Arguments, number: int) -> int | str:
        """Where q, k or v is among the arguments."""
        if number < len(self.qkv_indices) and self.qkv_indices[number] in found:
            return self.qkv_indices[number]
        if number < len(self.qkv_kwarg_names) and self.qkv_kwarg_names[number] in found:
            return self.qkv_kwarg_names[number]
        raise TypeError(
            f"no {_QKV[number]} among the arguments: neither in a place of qkv_indices {self.qkv_indices} "
            f"nor by a name of qkv_kwarg_names {self.qkv_kwarg_names}"
        )


class AsyncContextParallel(ContextParallel):
    """See the port."""

    def apply(
        self,
        module: nn.Module,
        device_mesh: DeviceMesh,
        q_proj: nn.Module | None = None,
        k_proj: nn.Module | None = None,
        v_proj: nn.Module | None = None,
    ) -> nn.Module:
        """Puts the hooks on ``module``, which is returned, and on the projections."""
        projections = dict(zip(_QKV, (q_proj, k_proj, v_proj), strict=True))
        if None in projections.values():
            return super().apply(module, device_mesh)
        by_heads = self._by_heads(device_mesh.size())
        under_way: dict[str, Transfer] = {}
        for what, projection in projections.items():
            if by_heads or what != "q":
                self._send_off(what, projection, device_mesh, by_heads, under_way)
        return self._hook(module, device_mesh, partial(_move_begun, under_way=under_way))

    def _send_off(
        self,
        what: str,
        projection: nn.Module,
        device_mesh: DeviceMesh,
        by_heads: bool,
        under_way: dict[str, Transfer],
    ) -> None:
        """Has the projection's output start when it is there, and its gradient waited for where it is needed."""
        going_back: deque[Transfer] = deque()

        def start(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            split = even_split(device_mesh.get_group(), output.shape[self.seq_dim])
            if by_heads:
                heads_per_rank(what, output.shape[self.head_dim], split.size)
            under_way[what] = Transfer(output, self._route(split, by_heads), going_back)

        def wait(_: nn.Module, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            # Added, because the projection's output may have been used elsewhere too.
            return (grads[0] + going_back.popleft().take_back(),) if going_back else grads

        projection.register_forward_hook(start)
        projection.register_full_backward_pre_hook(wait)

    def _route(self, split: Split, by_heads: bool) -> Route:
        return ToHeads(split, self.seq_dim, self.head_dim) if by_heads else ToWhole(split, self.seq_dim)


class _Arguments:
    """The arguments of a call, positional ones by index and the others by name."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._positional, self._by_name = list(args), dict(kwargs)

    def __contains__(self, place: int | str) -> bool:
        return place in self._by_name if isinstance(place, str) else place < len(self._positional)

    def __getitem__(self, place: int | str) -> Any:
        return self._by_name[place] if isinstance(place, str) else self._positional[place]

    def __setitem__(self, place: int | str, value: Any) -> None:
        (self._by_name if isinstance(place, str) else self._positional)[place] = value

    def args(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As a forward pre-hook returns them."""
        return tuple(self._positional), self._by_name


def _move_now(what: str, tensor: Tensor, *, style: ContextParallel, split: Split, by_heads: bool) -> Tensor:
    if not by_heads:
        return gather_sequence(tensor, style.seq_dim, split)
    heads_per_rank(what, tensor.shape[style.head_dim], split.size)
    return sequence_to_heads(tensor, style.seq_dim, style.head_dim, split)


def _move_begun(what: str, tensor: Tensor, *, under_way: dict[str, Transfer], split: Split, by_heads: bool) -> Tensor:
    """What a projection has sent off."""
    return under_way.pop(what).arrived(tensor)
