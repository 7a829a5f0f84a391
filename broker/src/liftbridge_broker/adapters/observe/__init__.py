"""Output for operators: log events, metrics, health.

`catalogue.yaml` names every metric and every transition; `catalogue` reads it, `observer` turns a
transition into one log event and one count, `logs` sets up the log, `metrics` collects plain
integers at scrape time, `exposition` renders them off the event loop, `http` serves them.
"""
