"""The summary for a pull request, and the tests for a continuous integration."""

import re
from xml.etree import ElementTree as ET

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.report import ci
from tests.report.runs import HOSTILE, faulty, with_finding


def test_the_summary_begins_with_the_verdict_and_ends_with_what_to_do():
    value = sp.diagnose(recorded()).as_dict()
    text = ci.markdown(value)
    assert text.startswith("### samepolicy: numerics\n")
    assert "| logp_diff mean | 0.0413 |" in text
    assert text.rstrip().splitlines()[-1].startswith("**Next**: Nothing to mend")
    assert text.count("✓") == 9


def test_a_named_cause_comes_before_everything_else():
    value = with_finding(faulty(temperature=0.7).as_dict() | {"figures": {}})
    lines = [line for line in ci.markdown(value).splitlines() if line]
    assert lines[2] == "**Cause: temperature** (temperature 0.7), trainer, explains 97% of the gap"
    assert lines[4].startswith("- fix: Divide the trainer's logits")


def test_text_of_a_run_is_no_markup():
    value = faulty(shift=1).as_dict()
    for text in HOSTILE:
        made = ci.markdown({**value, "sentence": f"{text} [click](https://x.y) | # head", "next": text})
        shown = re.sub(r"&(nbsp|lt|gt|amp);", "", made)
        assert "<" not in shown
        assert "[click](" not in made
        assert "\\|" in made


def test_junit_says_what_failed():
    value = faulty(shift=1).as_dict()
    root = ET.fromstring(ci.junit(value))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert cases["verdict"].find("failure") is not None
    assert "the column fits moved by -1 places" in cases["ladder.shift"].find("failure").get("message")
    assert cases["ladder.tokens"].find("failure") is None
    assert cases["ladder.weights"].find("skipped") is not None
    suite = root.find("testsuite")
    assert int(suite.get("failures")) == len(root.findall(".//failure")) > 1
    assert int(suite.get("tests")) == len(cases)


def test_a_lead_alone_fails_no_test():
    value = sp.diagnose(recorded()).as_dict()
    rung = {**value["ladder"][6], "status": "failed", "why": "fingerprints differ"}
    root = ET.fromstring(ci.junit({**value, "ladder": [rung]}))
    assert root.findall(".//failure") == []
    assert "failed: fingerprints differ" in root.findtext(".//testcase[@name='ladder.weights']/system-out")


def test_what_cannot_be_told_is_an_error_and_hostile_text_is_text():
    value = sp.diagnose(sp.Run.from_lists(rollout_logp=[[-1.0]])).as_dict()
    for text in HOSTILE:
        root = ET.fromstring(ci.junit({**value, "sentence": text}).encode("utf-8"))
        message = root.find(".//testcase[@name='verdict']/error").get("message")
        assert message.strip() or not text.strip()
