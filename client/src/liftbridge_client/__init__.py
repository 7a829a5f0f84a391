"""Client of Liftbridge brokers: asyncio first, with a synchronous facade over it."""
