"""Port of declarative sharding: a plan says how parameters, inputs and outputs lie, and the module stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class Shard(Protocol):
    """Distributed tensors put into modules by a plan, and into plain functions by placements.

    The layout of one tensor is a tuple: of placements, one per mesh dimension, or of axis names, one per tensor
    dimension, as `Layout` takes them (`("dp", "None")`).
    """

    def ShardingPlan(
        self,
        plan: dict[str, Any] | None = None,
        input_plan: dict[str, Any] | None = None,
        output_plan: dict[str, Any] | None = None,
        return_local_tensor: list[str] | None = None,
    ) -> Any:
        """A plan: a value that is compared, pickled and printed with all that it says.

        Names are dotted, as `named_parameters` and `named_modules` have them; a wildcard stands for any part of one
        level (`blocks.*.up.weight`).

        Args:
            plan: parameter -> its layout.
            input_plan: `input` or `<module>.input` -> layouts of what the module gets: one layout for the first
                argument, a sequence for arguments in the order of the signature, a dict for arguments by name. None
                in the place of a layout leaves an argument alone. The name of `*args` stands for each of them.
            output_plan: `output` or `<module>.output` -> layouts of what it returns: one, a sequence for a tuple or
                list, a dict for a dict, dataclass or named tuple.
            return_local_tensor: modules that return this rank's part of each distributed tensor; an empty name is the
                model itself.
        """

    def shard_module(
        self, model: nn.Module | Callable[..., Any], device_mesh: DeviceMeshMembers, sharding_plan: Any
    ) -> Any:
        """Carries out a plan on a module, in place, or wraps a function, which has inputs and outputs only.

        Parameters become distributed ones: each rank divides its own, which must be the same everywhere, and nothing is
        sent. Inputs are laid out by a hook before the module runs, outputs by one behind the hooks that the module has
        already. Arguments and results that are no distributed tensors pass as they are, in the form in which they were
        given; `module.forward()` goes without hooks, as always. A later plan takes the place of an earlier one at each
        parameter, each module's inputs and each module's output that it names.

        Returns:
            `model`, the same object, or the wrapped function.

        Raises:
            TypeError: `sharding_plan` is no ShardingPlan, `model` is neither a module nor a function.
            ValueError: a parameter, module or argument is not there, which the message names with near matches; a
                layout does not fit the mesh; two names lay one tensor out differently. Nothing is changed then. On a
                call: the output has another structure than the plan.
        """

    def remove_sharding_plan(self, module: nn.Module) -> nn.Module:
        """Takes every plan off `module` and the modules in it, in place; collective where parameters are divided.

        No hook of a plan stays, and parameters are plain and whole again, with their present values and no gradients.
        """

    def custom_shard(
        self,
        func: Callable[..., Any],
        device_mesh: DeviceMeshMembers,
        out_placements: Sequence[Any],
        in_placements: Sequence[Any] | None = None,
        redistribute_inputs: bool = True,
    ) -> Callable[..., Any]:
        """Makes a function of distributed tensors from one of their parts, which runs on each rank by itself.

        Differentiable: a replicated input gets the sum of all ranks' gradients. Without a distributed tensor among
        the arguments, `func` is called as it is.

        Args:
            out_placements: for each result its placements, None where it is no tensor.
            in_placements: for each positional argument likewise. Ranks must divide the tensors evenly. Distributed
                tensors by keyword are refused.
            redistribute_inputs: whether inputs that lie otherwise are laid out anew, or refused.

        Raises:
            ValueError, TypeError, RuntimeError or AssertionError: on a call whose arguments or results do not fit the
                placements.
        """

    DFunction: type
    """Base of an autograd function on distributed tensors, with an operator's name.

    A subclass has `op_name`, the static methods `forward(ctx, *args)` and `backward(ctx, *grads)` of a
    `torch.autograd.Function`, which see this rank's parts, and a static method `rule(*args)` as `register_sharding`
    takes it. `apply(*args)` lays the arguments out by the first row of the rule that fits, or by its first row. On
    plain tensors it is the plain autograd function. The graph and errors have the operator's name.
    """
