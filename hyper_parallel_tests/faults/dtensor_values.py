"""Faults of values that move: what layer 2 of dtensor must catch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native"
_PLACEMENTS = "torch.distributed.tensor.placement_types"
_CROSS_MESH = f"{_OURS}.dtensor.cross_mesh"


@fault(
    id="dt-average-of-terms-is-their-sum",
    symptom="The loss in full is too large by the number of ranks, and only where it is averaged over them.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-01"],
    ranks="all",
)
def average_of_terms_is_their_sum(patch: Patch) -> None:
    @patch.around(f"{_PLACEMENTS}:Partial._reduce_value", parameters=("self", "tensor", "mesh", "mesh_dim"))
    def reduce(original: Any, self: Any, tensor: Any, mesh: Any, mesh_dim: int) -> Any:
        found = original(self, tensor, mesh, mesh_dim)
        if self.reduce_op != "avg":
            return found
        patch.reached()
        return found * mesh.size(mesh_dim)


@fault(
    id="dt-gradient-of-a-cut-stays-a-part",
    symptom="A replicated weight that is cut for a layer learns in the rank's own part only, and replicas drift apart.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-01"],
    ranks="all",
)
def gradient_of_a_cut_stays_a_part(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor._redistribute:Redistribute.backward", parameters=("ctx", "grad_output"))
    def backward(original: Any, ctx: Any, grad_output: Any) -> Any:
        grad, *others = original(ctx, grad_output)
        if ctx.current_spec.placements[0].is_replicate() and isinstance(grad_output.placements[0], Shard):
            patch.reached()
            rank, dim = ctx.current_spec.mesh.get_local_rank(0), grad_output.placements[0].dim
            local = grad.to_local().clone()
            for index, rows in enumerate(local.chunk(ctx.current_spec.mesh.size(0), dim)):
                if index != rank:
                    rows.zero_()
            grad = DTensor.from_local(local, grad.device_mesh, grad.placements, shape=grad.shape, stride=grad.stride())
        return grad, *others


@fault(
    id="dt-distributed-in-the-default-dtype",
    symptom="A bf16 model takes twice the memory once it is distributed.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-03"],
    ranks="all",
)
def distributed_in_the_default_dtype(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:distribute_tensor", parameters=("tensor", "device_mesh", "placements"))
    def distribute_tensor(original: Any, tensor: Any, *args: Any, **options: Any) -> Any:
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            patch.reached()
            tensor = tensor.float()
        return original(tensor, *args, **options)


@fault(
    id="dt-each-rank-divides-its-own-data",
    symptom="Ranks that drew different initial weights train a model put together from all of them.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-03"],
)
def each_rank_divides_its_own_data(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:distribute_tensor", parameters=("tensor", "device_mesh", "placements"))
    def distribute_tensor(original: Any, *args: Any, src_data_rank: int | None = None) -> Any:
        if src_data_rank is not None:
            patch.reached()
        return original(*args)


@fault(
    id="dt-factory-makes-the-whole-on-each-rank",
    symptom="A sharded optimizer state takes as much memory as a replicated one.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-04"],
    ranks="all",
)
def factory_makes_the_whole_on_each_rank(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:zeros")
    def zeros(original: Any, size: Any, *, device_mesh: Any, placements: Any, **options: Any) -> Any:
        patch.reached()
        local = original(size, device_mesh=device_mesh, placements=placements, **options).to_local()
        return DTensor.from_local(local.new_zeros(size), device_mesh, placements)


@fault(
    id="dt-random-shards-repeat",
    symptom="Each rank starts from the same shard: sharded weights are copies of one another.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-04"],
    ranks="all",
)
def random_shards_repeat(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor.factories:_random", parameters=("draw", "sharded", "size", "device_mesh"))
    def random(original: Any, draw: Callable[..., Any], sharded: Any, size: Any, *where: Any, **options: Any) -> Any:
        patch.reached()
        found = original(draw, sharded, size, *where, **options)
        state = torch.get_rng_state()
        torch.manual_seed(0)
        local = draw(found.to_local().shape, **options)
        torch.set_rng_state(state)
        return DTensor.from_local(local, found.device_mesh, found.placements)


@fault(
    id="dt-users-rule-ignored",
    symptom="A registered rule has no effect: the operator gathers as it did before.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-05"],
    ranks="all",
)
def users_rule_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:register_sharding", parameters=("op", "rule"))
    @contextmanager
    def register_sharding(original: Any, op: Any, rule: Any) -> Iterator[None]:
        if op.namespace != "aten":
            with original(op, rule):
                yield
            return
        patch.reached()
        yield


@fault(
    id="dt-users-rule-outlives-its-context",
    symptom="A rule that one model registered governs the next one in the same process.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-05"],
    ranks="all",
)
def users_rule_outlives_its_context(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:register_sharding", parameters=("op", "rule"))
    @contextmanager
    def register_sharding(original: Any, op: Any, rule: Any) -> Iterator[None]:
        if op.namespace == "aten":
            with original(op, rule):
                yield
            return
        patch.reached()
        kept.append(original(op, rule))
        kept[-1].__enter__()
        yield

    kept: list[Any] = []


@fault(
    id="dt-other-mesh-gets-the-same-parts",
    symptom="Weights moved to a mesh of another order are put together in the old order.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-06"],
    ranks="all",
)
def other_mesh_gets_the_same_parts(patch: Patch) -> None:
    @patch.around(f"{_CROSS_MESH}:_move", parameters=("tensor", "device_mesh", "placements"))
    def move(original: Any, tensor: Any, device_mesh: Any, placements: Any) -> Any:
        found = original(tensor, device_mesh, placements)
        local = tensor.to_local()
        if found.to_local().shape == local.shape:
            patch.reached()
            found.to_local().copy_(local)
        return found


@fault(
    id="dt-gradient-lost-between-meshes",
    symptom="The encoder on its own mesh does not learn: what comes back from the decoder's mesh is zero.",
    capability="dtensor",
    layer="l2",
    must_fail=["DT-2-06"],
    ranks="any",
)
def gradient_lost_between_meshes(patch: Patch) -> None:
    @patch.around(f"{_CROSS_MESH}:_Redistribute.backward", parameters=("ctx", "grad"))
    def backward(original: Any, ctx: Any, grad: Any) -> Any:
        found, *others = original(ctx, grad)
        patch.reached()
        return found * 0, *others
