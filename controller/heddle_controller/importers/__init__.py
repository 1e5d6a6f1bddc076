"""Fabric files of other systems: node-link JSON with other words, CSV of hosts and switches."""

from heddle_controller.importers.load import load_fabric
from heddle_controller.importers.options import ImportOptions, parse_mapping

__all__ = ["ImportOptions", "load_fabric", "parse_mapping"]
