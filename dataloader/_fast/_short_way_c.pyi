"""Types of the compiled twin: those of the Python one."""

from dataloader._fast._short_way_py import Presence, ShortWay, Slot, local

__all__ = ["Presence", "ShortWay", "Slot", "local"]

IS_CHECKED: bool
