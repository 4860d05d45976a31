"""defer_pp_recv takes messages between two ranks in another order than they are sent: gradients for activations."""

from types import SimpleNamespace

from torch.distributed.pipelining import schedules

if __name__ == "__main__":
    shared = {"group_size": 2, "group_rank": 0, "num_stages": 4, "submod": None}
    stages = [SimpleNamespace(stage_index=index, **shared) for index in (0, 2)]
    made = schedules.ScheduleInterleavedZeroBubble(stages, 4, defer_pp_recv=True)
    order = made.pipeline_order_with_comms
    # All that rank 1 gets is from rank 0, and the other way about.
    for sender, receiver in ((0, 1), (1, 0)):
        sent = [
            (one.stage_index, str(one.computation_type)[-1], one.microbatch_index)
            for one in order[sender]
            if "SEND" in str(one)
        ]
        sent = [(stage + (1 if way == "F" else -1), way, micro) for stage, way, micro in sent]
        received = [
            (one.stage_index, str(one.computation_type)[-1], one.microbatch_index)
            for one in order[receiver]
            if "RECV" in str(one)
        ]
        print(f"rank {receiver}: expected {sent[2:7]}\n        got      {received[2:7]}")
