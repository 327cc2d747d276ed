"""Watches a run while it trains: feeds the rules in the recorder's thread, writes down and says what they find.

Enters: the steps and evaluations of a run, and what sensors measure of its routers and its machine. Leaves: findings,
as lines, as events of the log and to a callback of the user's. Invariants: no step waits for a judgement, and nothing
here stops training or raises into it.

```
  training thread                                    recorder's writer thread
  end_step: sensors begin a transfer, now and then   values are on the host there
            StepRow, Event -> recorder ------------> observe -> rules -> a line, events of the log
  tell_findings: the user's callback <-------------- findings
```

Of a run without a log the training thread judges what has arrived.
"""

from trimtab.watching.sensors import RouterReading, RouterSensor, VitalsReading, VitalsSensor
from trimtab.watching.telling import OnFinding
from trimtab.watching.watch import Watch

__all__ = ["OnFinding", "RouterReading", "RouterSensor", "VitalsReading", "VitalsSensor", "Watch"]
