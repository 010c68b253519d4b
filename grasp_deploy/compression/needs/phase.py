"""A peak of memory within a stage, by what takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Terms = dict[str, int]  # bytes by what takes them


@dataclass(frozen=True)
class Phase:
    """A peak within a stage: what each process holds on its device and in the CPU's memory.

    On a CPU both are the same memory. `lead` is what the lead holds beside it, on the CPU.
    """

    stage: str
    device: Terms
    host: Terms
    lead: Terms

    @property
    def device_bytes(self) -> int:
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        return sum(self.host.values())

    @property
    def lead_bytes(self) -> int:
        return sum(self.lead.values())

    def as_dict(self) -> dict[str, Any]:
        """The record: sizes are whole bytes."""
        totals = {n: getattr(self, n) for n in ("device_bytes", "host_bytes", "lead_bytes")}
        parts = {name: getattr(self, name) for name in ("device", "host", "lead")}
        return {"stage": self.stage, **totals, **parts}
