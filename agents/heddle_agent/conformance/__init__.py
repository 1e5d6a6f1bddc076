"""What every FIB backend must do, checked by cases that observe the data plane.

``heddle-agent conformance --backend MODULE:NAME`` runs them on any backend, and so does our own
test suite.
"""

from heddle_agent.conformance.bench import ADDRESSES, SPINES, SWITCH, Bench, OpenBench, far, uplink
from heddle_agent.conformance.cases import CASES, Case
from heddle_agent.conformance.checks import BrokenPromiseError
from heddle_agent.conformance.run import Result, Verdict, find_opener, run_case, run_cases

__all__ = [
    "ADDRESSES",
    "CASES",
    "SPINES",
    "SWITCH",
    "Bench",
    "BrokenPromiseError",
    "Case",
    "OpenBench",
    "Result",
    "Verdict",
    "far",
    "find_opener",
    "run_case",
    "run_cases",
    "uplink",
]
