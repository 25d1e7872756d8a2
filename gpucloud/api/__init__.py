"""Parts that every API view shares: problem details, strict parsing, entity tags, pagination, the OpenAPI schema."""
