"""The places in a network where two engines are compared, under names that do not depend on the engine.

A layer adds the outputs of two blocks to the residual stream. Each tap is what the taps before it determine, so an
error at a tap that its inputs do not explain belongs to the step between them.
"""

PARTS = (
    "attention_norm",
    "q",
    "k",
    "v",
    "attention",
    "attention_block",
    "middle",
    "mlp_norm",
    "router",
    "experts",
    "mlp",
    "residual",
)
"""The taps of a layer in the order of computation.

`q` and `k` are taken after the rotation by position, `attention` before the output projection, `attention_block` and
`mlp` as they are added to the stream, `middle` is the stream between the two blocks and `residual` the one after both.
`router` holds logits, `experts` the chosen experts' numbers in rising order.
"""

EMBEDDING, FINAL_NORM, LOGITS = "embedding", "final_norm", "logits"
STREAM = ("middle", "residual")
"""Parts that carry the stream: all later layers depend on nothing else."""


def name(layer: int, part: str) -> str:
    """The name of a tap.

    >>> name(3, "q")
    'layers.3.q'
    """
    return f"layers.{layer}.{part}"


def part_of(tap: str) -> str:
    """What a tap is, without its layer.

    >>> part_of("layers.3.q"), part_of("logits")
    ('q', 'logits')
    """
    return tap.rpartition(".")[2]


def layer_of(tap: str) -> int | None:
    """The layer of a tap; None for those outside the layers.

    >>> layer_of("layers.3.q"), layer_of("logits")
    (3, None)
    """
    return int(tap.split(".")[1]) if tap.startswith("layers.") else None


def ordered(layers: int) -> tuple[str, ...]:
    """All taps of a model in the order of computation."""
    inner = [name(layer, part) for layer in range(layers) for part in PARTS]
    return (EMBEDDING, *inner, FINAL_NORM, LOGITS)


def stream(layers: int) -> tuple[str, ...]:
    """The taps of the residual stream from the embedding on, in order."""
    inner = [name(layer, part) for layer in range(layers) for part in STREAM]
    return (EMBEDDING, *inner)
