"""The deterministic simulator: whole clusters of the shipped code in one thread, by seed.

`world` owns a heap of events (`scheduler`), a NATS (`network`), machines with disks and clocks
(`machine`, `disk`, `clock`) and what is checked after every event. What runs on a machine is a
`program`: the shipped code behind its ports. `plan` draws a life from a seed, `clients` use the
brokers, `faults` break things, `checks` tell what is wrong. `python -m liftbridge_testkit.sim`
runs ranges of seeds; `scenario` runs scripts of exact steps in the same worlds.
"""
