"""What there is to read, for faces of the controller beside gRPC: the web view.

The services are asked as gRPC asks them, so that there is one answer to each question and one
list of who may ask it. They need no context where they only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import Store
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.link_book import Condition, Ends
from heddle_controller.serve.audit import AuditService
from heddle_controller.serve.doctor.service import DoctorService
from heddle_controller.serve.fabric import FabricService
from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.serve.overlay import OverlayService
from heddle_controller.serve.placement import PlacementService
from heddle_controller.serve.plan import PlanService
from heddle_controller.serve.rates import RateBook
from heddle_controller.serve.watch import Changes


@dataclass(frozen=True, slots=True)
class Reads:
    """What the readers of one controller process share."""

    store: Store
    observations: Observations
    gateway: Gateway
    changes: Changes
    indexes: FlowIndexes
    fabric: FabricService
    placement: PlacementService
    plan: PlanService
    overlay: OverlayService
    doctor: DoctorService
    audit: AuditService
    rates: RateBook
    unwell: Callable[[str], Mapping[Ends, Condition]]
    """Links of a fabric that agents find something wrong with."""
