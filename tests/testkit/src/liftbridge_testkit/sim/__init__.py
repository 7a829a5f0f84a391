"""The deterministic simulator: whole clusters of the real code in one thread, by seed.

`world` owns a heap of events (`scheduler`), a NATS (`network`), machines with disks and clocks
(`machine`, `disk`, `clock`) and the checks after every event. A `program` runs on a machine: the
real code behind its ports. `plan` draws a run from a seed, `clients` use the brokers, `faults`
injects faults, `checks` reports broken promises. `python -m liftbridge_testkit.sim` runs ranges of
seeds; `scenario` runs scripts of exact steps in the same worlds.
"""
