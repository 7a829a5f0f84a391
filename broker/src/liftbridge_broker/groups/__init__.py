"""Cores of client state kept by brokers: cursors, and the lag of groups behind them."""
