"""Fleets: agents for all switches of a fabric, and a controller, all on one machine."""

from heddle_emulator.fleet.agents import Fleet
from heddle_emulator.fleet.controller import (
    Controller,
    ControllerError,
    ControllerPool,
    FaultInjectingController,
)
from heddle_emulator.fleet.staged import Held, StagedFleet

__all__ = [
    "Controller",
    "ControllerError",
    "ControllerPool",
    "FaultInjectingController",
    "Fleet",
    "Held",
    "StagedFleet",
]
