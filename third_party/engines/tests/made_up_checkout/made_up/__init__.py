"""A made-up engine; only its imports matter."""

from made_up.core.clip.grads import clip
from made_up.core.mesh import Mesh
from made_up.core.pipeline.stage import Stage
from made_up.core.shard import shard

__all__ = ["Mesh", "Stage", "clip", "shard"]
