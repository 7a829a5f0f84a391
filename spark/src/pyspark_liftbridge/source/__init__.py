"""The data source and sink: thin classes of Spark over the plan and the client."""
