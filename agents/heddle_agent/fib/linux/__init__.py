"""The Linux backend: nftables for exact matches, routing tables for next hops."""

from heddle_agent.fib.linux.backend import LinuxFib
from heddle_agent.fib.linux.cleaning import Removed, clean_kernel
from heddle_agent.fib.linux.hops import Cable
from heddle_agent.fib.linux.kernel import UnavailableError

__all__ = ["Cable", "LinuxFib", "Removed", "UnavailableError", "clean_kernel"]
