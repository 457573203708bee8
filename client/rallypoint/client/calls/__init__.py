"""The calls of each service: requests without IO, shared by both forms of the client."""
