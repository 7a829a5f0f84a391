"""The data source and sink: thin Spark classes over the plan and the client."""
