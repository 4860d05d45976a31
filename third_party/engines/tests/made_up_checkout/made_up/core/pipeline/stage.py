"""Takes what it needs from the engine's root."""

import made_up


class Stage:
    mesh = property(lambda self: made_up.Mesh())
