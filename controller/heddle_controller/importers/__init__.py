"""Importers of fabrics from other systems, and exporters to two of them.

The files come from discovery programs, inventories or lab topologies.
"""

from heddle_controller.importers.containerlab import clab_text
from heddle_controller.importers.load import load_fabric
from heddle_controller.importers.node_link import dot_text
from heddle_controller.importers.options import ImportOptions, parse_mapping

__all__ = ["ImportOptions", "clab_text", "dot_text", "load_fabric", "parse_mapping"]
