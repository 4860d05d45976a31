"""Faults of declarative sharding on torch_native: parts of parameters, and gradients of functions of parts."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.shard"


@fault(
    id="sh-parts-in-reverse-order",
    symptom="The loss falls from another start, and a gathered checkpoint has its rows in blocks out of order.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-01"],
    ranks="all",
)
def parts_in_reverse_order(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:distribute_tensor", parameters=("tensor", "device_mesh", "placements"))
    def distribute(original: Any, tensor: Any, device_mesh: Any, placements: Any, **options: Any) -> Any:
        (placement,) = placements
        if not isinstance(placement, Shard):
            return original(tensor, device_mesh, placements, **options)
        patch.reached()
        parts = tensor.chunk(device_mesh.size(), placement.dim)
        return DTensor.from_local(parts[-1 - device_mesh.get_local_rank()], device_mesh, placements)


@fault(
    id="sh-terms-taken-for-the-whole",
    symptom="The output differs by rank: each has its own term of the sum.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-01"],
    ranks="any",
)
def terms_taken_for_the_whole(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:moved_to", parameters=("value", "placements", "device_mesh"))
    def moved(original: Any, value: Any, placements: Any, device_mesh: Any) -> Any:
        if isinstance(value, DTensor) and any(one.is_partial() for one in value.placements):
            patch.reached()
            value = DTensor.from_local(value.to_local(), device_mesh, [Replicate()])
        return original(value, placements, device_mesh)


@fault(
    id="sh-inputs-by-name-swapped",
    symptom="The loss is right only where inputs are named in the order of the signature.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-01"],
    ranks="all",
)
def inputs_by_name_swapped(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:Inputs.lay_out", parameters=("self", "args", "kwargs"))
    def lay_out(original: Any, self: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = original(self, args, kwargs)
        if len(kwargs) > 1:
            patch.reached()
            kwargs = dict(zip(kwargs, reversed(kwargs.values()), strict=True))
        return args, kwargs


@fault(
    id="sh-replicated-gradient-not-summed",
    symptom="Weights that all ranks share drift apart: each rank's gradient is that of its own rows.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-02"],
    ranks="any",
)
def replicated_gradient_not_summed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.functions:gradient_of_part", parameters=("placement",))
    def gradient(original: Any, placement: Any) -> Any:
        if not placement.is_replicate():
            return original(placement)
        patch.reached()
        return Replicate()


@fault(
    id="sh-whole-results-counted-by-each-rank",
    symptom="Gradients through a replicated result are as many times too large as there are ranks.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-02"],
    ranks="all",
)
def whole_results_counted_by_each_rank(patch: Patch) -> None:
    @patch.around(f"{_OURS}.functions:join", parameters=("value", "device_mesh", "placements", "place"))
    def join(original: Any, value: Any, device_mesh: Any, placements: Any, place: int) -> Any:
        if placements is None or not all(one.is_replicate() for one in placements):
            return original(value, device_mesh, placements, place)
        patch.reached()
        return DTensor.from_local(value, device_mesh, placements)


@fault(
    id="sh-inputs-not-refused",
    symptom="A function that was not to move its inputs gathers them, without a word.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-02"],
    ranks="all",
)
def inputs_not_refused(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.functions:part_of", parameters=("value", "device_mesh", "placements", "place", "redistribute")
    )
    def part_of(original: Any, value: Any, device_mesh: Any, placements: Any, place: int, redistribute: bool) -> Any:
        if not redistribute:
            patch.reached()
        return original(value, device_mesh, placements, place, True)


@fault(
    id="sh-only-the-first-row-of-a-rule",
    symptom="The values are right, and a distributed function gathers arguments that it could take as they lie.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-02"],
    ranks="all",
)
def only_the_first_row_of_a_rule(patch: Patch) -> None:
    @patch.around(f"{_OURS}.functions:DFunction._row", parameters=("cls", "args", "axis"))
    def row(original: Any, cls: Any, args: Any, axis: int) -> Any:
        found, first = original(cls, args, axis), next(iter(cls.rule(*args)))
        if list(found[1]) != list(first[1]):
            patch.reached()
        return first


@fault(
    id="sh-inputs-leave-the-graph",
    symptom="Layers before a sharded one do not train.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-01"],
    ranks="all",
)
def inputs_leave_the_graph(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:Inputs.lay_out", parameters=("self", "args", "kwargs"))
    def lay_out(original: Any, self: Any, args: Any, kwargs: Any) -> Any:
        def cut(value: Any) -> Any:
            if not isinstance(value, DTensor) or not value.requires_grad:
                return value
            patch.reached()
            return value.detach()

        return original(self, tuple(map(cut, args)), {name: cut(one) for name, one in kwargs.items()})


@fault(
    id="sh-gradient-left-as-terms",
    symptom="An optimizer that goes over the parts moves shared weights by each rank's own term.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-02"],
    ranks="all",
)
def gradient_left_as_terms(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.functions:part_of", parameters=("value", "device_mesh", "placements", "place", "redistribute")
    )
    def part_of(original: Any, value: Any, device_mesh: Any, placements: Any, *args: Any) -> Any:
        if placements is None or value.placements != tuple(placements) or not placements[0].is_replicate():
            return original(value, device_mesh, placements, *args)
        patch.reached()
        return value.to_local(grad_placements=[Partial()])


@fault(
    id="sh-terms-of-an-input-get-their-share",
    symptom="Gradients of an input that a function gets as terms are as many times too large as there are ranks.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-02"],
    ranks="all",
)
def terms_of_an_input_get_their_share(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.functions:part_of", parameters=("value", "device_mesh", "placements", "place", "redistribute")
    )
    def part_of(original: Any, value: Any, device_mesh: Any, placements: Any, place: int, redistribute: bool) -> Any:
        if placements is None or not any(one.is_partial() for one in placements):
            return original(value, device_mesh, placements, place, redistribute)
        patch.reached()
        return value.redistribute(device_mesh, placements).to_local(grad_placements=placements)


@fault(
    id="sh-rule-asked-along-one-dimension",
    symptom="A distributed function is right on one mesh dimension and gathers its arguments on two.",
    capability="shard",
    layer="l2",
    must_fail=["SH-2-02"],
    ranks="all",
)
def rule_asked_along_one_dimension(patch: Patch) -> None:
    @patch.around(f"{_OURS}.functions:DFunction._row", parameters=("cls", "args", "axis"))
    def row(original: Any, cls: Any, args: Any, axis: int) -> Any:
        found, first = original(cls, args, axis), original(cls, args, 0)
        if found != first:
            patch.reached()
        return first
