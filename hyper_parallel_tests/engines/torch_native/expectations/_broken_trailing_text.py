"""What follows an action in its cell of a schedule's file is ignored, so that two actions without a comma are one."""

from torch.distributed.pipelining.schedules import _Action

try:
    found = _Action.from_str("0F0;0F1")
except RuntimeError as refusal:
    print(refusal)
else:
    print(f"0F0;0F1 is read as {found}")
    raise AssertionError("the second action is lost")
