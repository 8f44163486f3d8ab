"""The page in Chinese: its fixed words, and the verdict's sentence made anew from its numbers.

What the library says in sentences of its own (why a rung failed, evidence, fixes) stays in English.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from samepolicy.report.page.causes import causes

WORDS = Path(__file__).with_name("static") / "chinese.json"

SENTENCES = {
    "same": "两个策略相同：对数比只有 float32 所能分辨的大小。",
    "numerics": "两个策略在舍入误差内一致",
    "different": "两个策略不同",
    "inconclusive": "数据不足以判定两个策略是否相同",
}


@cache
def chinese() -> Mapping[str, str]:
    """The fixed words of the page by their English."""
    words: dict[str, str] = json.loads(WORDS.read_text(encoding="utf-8"))
    return words


def sentence(value: Mapping[str, Any]) -> str:
    """The verdict in Chinese, with the gap in multiples of the floor.

    Args:
        value: the JSON value of a diagnosis.

    >>> sentence({"verdict": "different", "gap": None})
    '两个策略不同。'
    """
    head, gap = SENTENCES[value["verdict"]], value.get("gap")
    if value["verdict"] == "same":
        return head
    if not gap or not isinstance(gap.get("ratio"), int | float):
        return f"{head}。"
    ends = [gap.get("low"), gap.get("high")]
    known = all(isinstance(e, int | float) for e in ends)
    interval = f"95 % 区间 {ends[0]:.3g} 至 {ends[1]:.3g}；" if known else ""
    size = f"{gap['tokens']} 个词元、{gap['prompts']} 个提示，|d| 均值 {gap['mean_abs']:.2g} nats"
    named = "、".join(_explains(cause) for cause in causes(value))
    because = f"原因是 {named}。" if named else ""
    return f"{head}：{because}差距是舍入底线² 的 {gap['ratio']:.3g} 倍（{interval}{size}；界限 {gap['limit']:g}）。"


def _explains(cause: Mapping[str, Any]) -> str:
    """A named cause with the share of the gap that it explains, where it was undone."""
    name, share = str(cause["cause"]).replace("_", " "), cause["share"]
    return f"{name}（解释了差距的 {share:.0%}）" if isinstance(share, int | float) else name
