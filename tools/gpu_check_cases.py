"""Which cases tools/gpu_check runs where. Patterns are gtest filters of the suites' programs."""

from __future__ import annotations

SOAK = "SoakGpu.*"

# Every operator, small cases: what is quick enough to run with every access watched, or with
# kernels that the driver compiles first. Test names say "cpu" for the row that a suite replaces by
# the GPU's.
SMALL_CASES = {
    "gpu_conv": "*EveryNodeOfARandomTree*/0:*CausalConv1dUpdate*/0:*SplitEqualsWhole*/0:"
    "*ConvSnapshot*/0",
    "gpu_device": "DeviceValues.*:KdaPrefillSm90.*",
    "gpu_kda": "*KdaDecodeKernel*/cpu:*KdaPrefillRows*/cpu:*KdaCommit*/cpu:*KdaReplay*/cpu:"
    "*KdaVerifyKernel*/cpu:*KdaSnapshot*/cpu",
    "gpu_lightning": "*Lightning*/cpu",
    "gpu_small": "*/cpu:*/0",
}

SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")

# (tools, pattern, reason): what a tool does not follow.
NOT_FOLLOWED = [
    (
        "memcheck,racecheck,synccheck,initcheck",
        "*ASlotBeyond31Bits:*MoreRowsTimesHeads*:*ConvolutionOf60000Tokens",
        "sizes are what they are about, and every access watched takes minutes",
    ),
]

# What a server does in one replay: captured graphs, cached prefixes, drafts, rings, both models.
REPLAYS = {
    "tree": [
        "--model=tiny",
        "--graphs=on",
        "--prefix-cache=on",
        "--speculation=tree",
        "--max-running=3",  # or all requests begin before there is a prefix to find
    ],
    "ring": ["--model=tiny", "--graphs=on", "--replay-ring=8", "--speculation=chain"],
    "bf16": ["--model=tiny", "--state-dtype=bf16", "--prefix-cache=on", "--max-running=3"],
}

# Operator: what chooses one small case of it.
FIRST_CALLS = {
    "kda_prefill": ["--model", "kimi-k3", "--heads", "32", "--layout", "1x512"],
    "kda_decode": ["--model", "kimi-linear", "--heads", "32", "--batch", "1"],
    "kda_layer_decode": ["--model", "kimi-linear", "--heads", "12", "--batch", "1"],
    "lightning_prefill": ["--model", "ring-flash", "--heads", "16", "--layout", "1x512"],
    "lightning_decode": ["--model", "ring-flash", "--heads", "16", "--batch", "1"],
}


def shared_prefixes() -> list[dict]:
    """A trace whose requests begin with one of two prompts; a block has 512 tokens."""
    lines = []
    for i in range(12):
        blocks = [0, 1] if i % 3 else [2, 3]
        prompt = 512 * len(blocks) + 60 + 37 * i
        ids = [*blocks, 100 + i]
        line = {"timestamp": 2000 * i, "input_length": prompt, "output_length": 20, "hash_ids": ids}
        lines.append(line)
    return lines


def sanitizer_filter(tool: str, program: str) -> str:
    """The filter of a suite under a tool; empty = the suite has no small cases."""
    small = SMALL_CASES.get(program, "")
    if not small:
        return ""
    left_out = [pattern for tools, pattern, _ in NOT_FOLLOWED if tool in tools.split(",")]
    return small + ("-" + ":".join(left_out) if left_out else "")
