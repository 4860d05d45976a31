"""The context of loss parallel stays on after an exception, and does not nest. Expected: off, off, no KeyError."""

from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.distributed.tensor.parallel.loss import customized_loss_ops


def state() -> str:
    return "on" if any(op in DTensor._op_dispatcher._custom_op_handlers for op in customized_loss_ops) else "off"


if __name__ == "__main__":
    print(state())
    try:
        with loss_parallel():
            raise ZeroDivisionError
    except ZeroDivisionError:
        print(state())
    with loss_parallel(), loss_parallel():
        pass
