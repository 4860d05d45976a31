"""Faults that show only where a sharding plan meets a module that styles have divided, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_INJECTION = "hyper_parallel_tests.engines.torch_native.shard.injection"


def _is_divided(module: Any) -> bool:
    """Whether tensor parallelism's styles are on the module."""
    return getattr(module, "_distribute_module_applied", False)


@fault(
    id="ix-plan-before-style",
    symptom="A plan's output layout is lost on a layer that a style divides: the style's hook runs behind the plan's.",
    capability="shard",
    layer="l3",
    must_fail=["IX-01"],
    ranks="all",
)
def plan_before_style(patch: Patch) -> None:
    @patch.around(f"{_INJECTION}:OutputInjection.__call__", parameters=("self", "module", "args", "output"))
    def call(original: Any, self: Any, module: Any, args: Any, output: Any) -> Any:
        if not _is_divided(module):
            return original(self, module, args, output)
        patch.reached()
        # As if the style's hook, which asked for other placements, had come last.
        given = output.placements
        return original(self, module, args, output).redistribute(placements=given)


@fault(
    id="ix-plan-trusts-divided-inputs",
    symptom="Keyword arguments of a module with divided layers are not gathered: each rank goes on with its own rows.",
    capability="shard",
    layer="l3",
    must_fail=["IX-01"],
    ranks="all",
)
def plan_trusts_divided_inputs(patch: Patch) -> None:
    @patch.around(f"{_INJECTION}:InputInjection.__call__", parameters=("self", "module", "args", "kwargs"))
    def call(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        args, laid_out = original(self, module, args, kwargs)
        if any(map(_is_divided, module.modules())) and laid_out:
            patch.reached()
            laid_out = {
                name: kwargs[name]
                if one.placements == kwargs[name].placements
                else one.from_local(
                    kwargs[name].to_local().repeat(one.device_mesh.size(), 1), one.device_mesh, one.placements
                )
                for name, one in laid_out.items()
            }
        return args, laid_out
